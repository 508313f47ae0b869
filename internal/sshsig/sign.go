package sshsig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// maxKey bounds a key file, in bytes.
const maxKey = 64 << 10

// programs are where ssh-keygen is looked for. PATH does not count: a project
// could have put something there.
var programs = []string{"/usr/bin/ssh-keygen", "/usr/local/bin/ssh-keygen", "/bin/ssh-keygen"}

// ErrNoProgram is returned when a key needs ssh-keygen and there is none.
var ErrNoProgram = errors.New("ssh-keygen is not in /usr/bin, /usr/local/bin or /bin")

// Key says where a signing key is.
type Key struct {
	File   string // private key, or public key of one that the agent holds
	Agent  string // socket of the agent, "" for none
	Env    []string
	Prompt *os.File // where ssh-keygen writes what it asks, if it has to
}

// Sign makes an armored signature: in this process with a private key that has no
// passphrase, through the agent for a public key, and for everything else (a
// passphrase, a security key) with ssh-keygen.
func (k Key) Sign(ctx context.Context, message []byte, namespace string) ([]byte, error) {
	file, err := filepath.Abs(k.File)
	if err != nil {
		return nil, fmt.Errorf("finding key %s: %w", k.File, err)
	}
	text, err := readKey(file)
	if err != nil {
		return nil, err
	}
	if public, _, _, _, err := ssh.ParseAuthorizedKey(text); err == nil {
		return k.signWithAgent(public, message, namespace)
	}
	if private, err := ssh.ParsePrivateKey(text); err == nil {
		return signWith(private, message, namespace)
	}
	return k.signWithProgram(ctx, file, message, namespace)
}

// public is the key's public half, which OpenSSH leaves readable beside an
// encrypted private one.
func (k Key) public() (ssh.PublicKey, error) {
	text, err := readKey(k.File)
	if err != nil {
		return nil, err
	}
	if public, _, _, _, err := ssh.ParseAuthorizedKey(text); err == nil {
		return public, nil
	}
	private, err := ssh.ParsePrivateKey(text)
	if err == nil {
		return private.PublicKey(), nil
	}
	if locked, ok := errors.AsType[*ssh.PassphraseMissingError](err); ok && locked.PublicKey != nil {
		return locked.PublicKey, nil
	}
	return nil, fmt.Errorf("reading the key %s: %w", k.File, err)
}

// readKey refuses a private key that others can read, as ssh does.
func readKey(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0) //nolint:forbidigo // needs the flags; nothing is created
	if err != nil {
		return nil, fmt.Errorf("reading the key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("reading the key: %s is not a regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKey))
	if err != nil {
		return nil, fmt.Errorf("reading the key %s: %w", path, err)
	}
	if bytes.Contains(text, []byte("PRIVATE KEY")) && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("reading the key %s: others can read it (mode %#o); chmod 600 mends it", path, info.Mode().Perm())
	}
	return text, nil
}

func (k Key) signWithAgent(public ssh.PublicKey, message []byte, namespace string) ([]byte, error) {
	if k.Agent == "" {
		return nil, fmt.Errorf("signing with the public key %s: no agent is running (SSH_AUTH_SOCK); name the private key", k.File)
	}
	conn, err := net.Dial("unix", k.Agent) //nolint:noctx // a local socket that answers or not
	if err != nil {
		return nil, fmt.Errorf("asking the SSH agent: %w", err)
	}
	defer conn.Close()
	signers, err := agent.NewClient(conn).Signers()
	if err != nil {
		return nil, fmt.Errorf("asking the SSH agent for its keys: %w", err)
	}
	for _, s := range signers {
		if bytes.Equal(s.PublicKey().Marshal(), public.Marshal()) {
			return signWith(s, message, namespace)
		}
	}
	return nil, fmt.Errorf("signing with the public key %s: the SSH agent does not hold it; add it with ssh-add", k.File)
}

// signWithProgram lets ssh-keygen ask for what the key needs.
func (k Key) signWithProgram(ctx context.Context, file string, message []byte, namespace string) ([]byte, error) {
	program := ""
	for _, candidate := range programs {
		if _, err := os.Stat(candidate); err == nil {
			program = candidate
			break
		}
	}
	if program == "" {
		return nil, fmt.Errorf("signing with %s: %w", k.File, ErrNoProgram)
	}
	cmd := exec.CommandContext(ctx, program, "-Y", "sign", "-n", namespace, "-f", file) //nolint:gosec // one of three absolute paths
	cmd.Dir, cmd.Env, cmd.Stdin = "/", k.Env, bytes.NewReader(message)
	if k.Prompt != nil {
		cmd.Stderr = k.Prompt
	}
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("signing with %s: running %s: %w", k.File, program, err)
	}
	return out, nil
}
