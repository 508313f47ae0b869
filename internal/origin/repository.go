package origin

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1" //nolint:gosec // what git names its objects by
	"encoding/hex"
	"fmt"
)

// Repository is a git repository of one commit as files for git's dumb protocol
// (gitprotocol-http(5)), by their path below its own, and the name of the commit. The
// commit has one file, README, with the text.
func Repository(text string) (files map[string][]byte, commit string, err error) {
	files = map[string][]byte{}
	put := func(kind string, content []byte) (name [20]byte) {
		object := append(fmt.Appendf(nil, "%s %d\x00", kind, len(content)), content...)
		name = sha1.Sum(object) //nolint:gosec // see above
		packed, failed := deflate(object)
		if failed != nil {
			err = failed
		}
		at := hex.EncodeToString(name[:])
		files["objects/"+at[:2]+"/"+at[2:]] = packed
		return name
	}
	blob := put("blob", []byte(text))
	tree := put("tree", append([]byte("100644 README\x00"), blob[:]...))
	const who = "sbx <sbx@dogfood.test> 1767225600 +0000"
	head := put("commit", fmt.Appendf(nil, "tree %x\nauthor %s\ncommitter %s\n\nOne file\n", tree, who, who))
	commit = hex.EncodeToString(head[:])
	files["HEAD"] = []byte("ref: refs/heads/main\n")
	files["info/refs"] = []byte(commit + "\trefs/heads/main\n")
	return files, commit, err
}

func deflate(b []byte) ([]byte, error) {
	var out bytes.Buffer
	w := zlib.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		return nil, fmt.Errorf("packing an object: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("packing an object: %w", err)
	}
	return out.Bytes(), nil
}
