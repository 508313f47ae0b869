// Package sbx holds the data that is built into the binary.
package sbx

import _ "embed"

// BuiltinProfiles is the text of profiles.toml, the reviewed built-in profiles.
//
//go:embed profiles.toml
var BuiltinProfiles string
