package approval

import (
	"fmt"

	"github.com/fractalboxdev/sbx/internal/sshsig"
)

// AdvisoryNamespace keeps signatures of advisories apart from all others.
const AdvisoryNamespace = "sbx-advisory-v1"

// SignedAdvisory reads an advisory and its signature beside it (SignatureSuffix), and
// returns its text and who signed it once an allowed signer is found to have. Who can
// write the two files does not matter.
func SignedAdvisory(path string, o Options) (text []byte, by string, err error) {
	if text, err = readSmall(path); err != nil {
		return nil, "", err
	}
	armored, err := readSmall(path + SignatureSuffix)
	if err != nil {
		return nil, "", err
	}
	signature, err := sshsig.Parse(armored)
	if err != nil {
		return nil, "", fmt.Errorf("reading the signature of %s: %w", path, err)
	}
	if err := signature.Verify(text, AdvisoryNamespace); err != nil {
		return nil, "", fmt.Errorf("checking the signature of %s: %w", path, err)
	}
	signers, err := o.signers()
	if err != nil {
		return nil, "", err
	}
	if by, err = signers.Allow(signature, o.Now); err != nil {
		return nil, "", fmt.Errorf("checking who signed %s: %w", path, err)
	}
	return text, by, nil
}

// readSmall reads a file of at most maxApproval bytes, and never waits for one.
func readSmall(path string) ([]byte, error) {
	f, err := open(path)
	if err != nil {
		return nil, fmt.Errorf("reading an advisory: %w", err)
	}
	defer f.Close()
	return readAll(f, maxApproval)
}
