package verdict

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Deployment is everything that a verdict speaks about: when one of it changes, the
// floor has to be proved again.
type Deployment struct {
	Binary     string            `json:"binary"`     // SHA-256, as all digests here in hexadecimal
	Profiles   string            `json:"profiles"`   // digest of the built-in profile set
	Config     map[string]string `json:"config"`     // digests of the operator's files, by path
	Libseccomp string            `json:"libseccomp"` // version
	Who        string            `json:"who"`        // root or user
	Host       map[string]string `json:"host"`       // kernel release, sysctls, security modules, capabilities, cgroup mode
}

// ID is the SHA-256 of all of it, in hexadecimal.
func (d Deployment) ID() string {
	text, err := json.Marshal(d) // maps are sorted; strings only
	if err != nil {
		panic("encoding a deployment: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
