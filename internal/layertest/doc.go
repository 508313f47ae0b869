// Package layertest holds the shape of the source tree as tests: who may
// import whom, where each outside library lives, how long functions and files
// get, and what may stand nowhere. It has no code of its own.
package layertest
