// Package sshsig makes and checks SSH signatures of texts (OpenSSH's
// PROTOCOL.sshsig), the ones that "ssh-keygen -Y" makes and checks, and knows
// whose count (the allowed_signers format of ssh-keygen(1)).
package sshsig

import (
	"bytes"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/crypto/ssh"
)

// Begin is the first line of an armored signature.
const Begin = "-----BEGIN SSH SIGNATURE-----"

const (
	armorType = "SSH SIGNATURE"
	magic     = "SSHSIG"
	version   = 1
	maxArmor  = 64 << 10 // bytes
	minRSA    = 2048     // bits, as ssh-keygen demands
)

// Errors about signatures that are well-formed, or not even that.
var (
	ErrMalformed = errors.New("not a well-formed SSH signature")
	ErrNamespace = errors.New("the signature is for another purpose")
	ErrWrong     = errors.New("the signature does not fit the text")
)

// Signature is a parsed signature. Nothing of it is proved before Verify.
type Signature struct {
	key       ssh.PublicKey
	namespace string
	hash      string
	inner     *ssh.Signature
}

// blob is the binary form.
type blob struct {
	Magic     [len(magic)]byte
	Version   uint32
	PublicKey string
	Namespace string
	Reserved  string
	Hash      string
	Signature string
}

// signedData is what the key really signs, after the magic.
type signedData struct {
	Namespace string
	Reserved  string
	Hash      string
	Digest    string
}

// Parse reads an armored signature and nothing beside it.
func Parse(armored []byte) (*Signature, error) {
	if len(armored) > maxArmor {
		return nil, fmt.Errorf("parsing signature: %w: it is too large", ErrMalformed)
	}
	block, rest := pem.Decode(armored)
	if block == nil || block.Type != armorType || len(block.Headers) > 0 || len(bytes.TrimSpace(rest)) > 0 || !bytes.HasPrefix(armored, []byte(Begin)) {
		return nil, fmt.Errorf("parsing signature: %w: one block %q is wanted", ErrMalformed, Begin)
	}
	var b blob
	if err := ssh.Unmarshal(block.Bytes, &b); err != nil {
		return nil, fmt.Errorf("parsing signature: %w: %w", ErrMalformed, err)
	}
	if string(b.Magic[:]) != magic || b.Version != version || b.Namespace == "" || b.Reserved != "" {
		return nil, fmt.Errorf("parsing signature: %w: its preamble is not that of version 1", ErrMalformed)
	}
	s := &Signature{namespace: b.Namespace, hash: b.Hash, inner: new(ssh.Signature)}
	var err error
	if s.key, err = ssh.ParsePublicKey([]byte(b.PublicKey)); err != nil {
		return nil, fmt.Errorf("parsing the signature's key: %w: %w", ErrMalformed, err)
	}
	if err := ssh.Unmarshal([]byte(b.Signature), s.inner); err != nil {
		return nil, fmt.Errorf("parsing signature: %w: %w", ErrMalformed, err)
	}
	return s, s.checkAlgorithms()
}

// checkAlgorithms refuses what ssh-keygen does: SHA-1, short RSA keys, and
// certificates, which say nothing to a list of keys. A security key has to have
// been touched.
func (s *Signature) checkAlgorithms() error {
	formats := map[string][]string{
		ssh.KeyAlgoED25519: {ssh.KeyAlgoED25519}, ssh.KeyAlgoRSA: {ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512},
		ssh.KeyAlgoECDSA256: {ssh.KeyAlgoECDSA256}, ssh.KeyAlgoECDSA384: {ssh.KeyAlgoECDSA384}, ssh.KeyAlgoECDSA521: {ssh.KeyAlgoECDSA521},
		ssh.KeyAlgoSKED25519: {ssh.KeyAlgoSKED25519}, ssh.KeyAlgoSKECDSA256: {ssh.KeyAlgoSKECDSA256},
	}[s.key.Type()]
	if !slices.Contains(formats, s.inner.Format) {
		return fmt.Errorf("parsing signature: %w: algorithm %q with a key of type %q is not taken", ErrMalformed, s.inner.Format, s.key.Type())
	}
	if crypto, ok := s.key.(ssh.CryptoPublicKey); ok {
		if key, ok := crypto.CryptoPublicKey().(*rsa.PublicKey); ok && key.N.BitLen() < minRSA {
			return fmt.Errorf("parsing signature: %w: an RSA key has %d bits at least", ErrMalformed, minRSA)
		}
	}
	const present = 1
	security := s.key.Type() == ssh.KeyAlgoSKED25519 || s.key.Type() == ssh.KeyAlgoSKECDSA256
	if security && (len(s.inner.Rest) == 0 || s.inner.Rest[0]&present == 0) {
		return fmt.Errorf("parsing signature: %w: nobody touched the security key", ErrMalformed)
	}
	return nil
}

// Verify proves that the signature's key signed the message for this namespace.
// Whose key it is, Signers say.
func (s *Signature) Verify(message []byte, namespace string) error {
	if s.namespace != namespace {
		return fmt.Errorf("verifying signature: %w: %q, not %q", ErrNamespace, clip(s.namespace), namespace)
	}
	data, err := dataToSign(message, namespace, s.hash)
	if err != nil {
		return fmt.Errorf("verifying signature: %w", err)
	}
	if err := s.key.Verify(data, s.inner); err != nil {
		return fmt.Errorf("verifying signature: %w: %w", ErrWrong, err)
	}
	return nil
}

// Fingerprint names the key as ssh-keygen -l does.
func (s *Signature) Fingerprint() string { return ssh.FingerprintSHA256(s.key) }

func dataToSign(message []byte, namespace, hash string) ([]byte, error) {
	var digest []byte
	switch hash {
	case "sha256":
		sum := sha256.Sum256(message)
		digest = sum[:]
	case "sha512":
		sum := sha512.Sum512(message)
		digest = sum[:]
	default:
		return nil, fmt.Errorf("%w: hash %q is neither sha256 nor sha512", ErrMalformed, clip(hash))
	}
	return append([]byte(magic), ssh.Marshal(signedData{Namespace: namespace, Hash: hash, Digest: string(digest)})...), nil
}

// signWith makes an armored signature with a key that is at hand.
func signWith(signer ssh.Signer, message []byte, namespace string) ([]byte, error) {
	const hash = "sha512" // as ssh-keygen chooses
	data, err := dataToSign(message, namespace, hash)
	if err != nil {
		return nil, err
	}
	algorithm := signer.PublicKey().Type()
	if algorithm == ssh.KeyAlgoRSA {
		algorithm = ssh.KeyAlgoRSASHA512
	}
	with, ok := signer.(ssh.AlgorithmSigner)
	if !ok {
		return nil, fmt.Errorf("signing with a key of type %s: it cannot choose its algorithm", algorithm)
	}
	signature, err := with.SignWithAlgorithm(nil, data, algorithm)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	b := blob{
		Version: version, PublicKey: string(signer.PublicKey().Marshal()), Namespace: namespace, Hash: hash,
		Signature: string(ssh.Marshal(signature)),
	}
	copy(b.Magic[:], magic)
	return pem.EncodeToMemory(&pem.Block{Type: armorType, Bytes: ssh.Marshal(b)}), nil
}

// clip bounds what an error repeats of a text that is not trusted.
func clip(s string) string { return s[:min(len(s), 64)] }
