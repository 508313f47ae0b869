package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// selfTestTime bounds the handshake with ourselves.
const selfTestTime = 10 * time.Second

// ProvePlaceholders makes sure, under the policy in force and before the command can
// hold a placeholder, that every host it is good for is intercepted: a handshake with
// the Server itself must end at a certificate of the run. Nothing is dialled and
// nothing recorded.
func (s *Server) ProvePlaceholders(ctx context.Context) error {
	for name, sl := range s.vault.slots {
		if sl.Placeholder == "" {
			continue
		}
		for _, host := range sl.Hosts {
			if err := s.proveHost(ctx, name, host); err != nil {
				return fmt.Errorf("proving that the placeholder of %s stays where sbx reads along, on %s: %w", sl.Secret, host, err)
			}
		}
	}
	return nil
}

func (s *Server) proveHost(ctx context.Context, credential string, host egress.Host) error {
	policy := s.Policy()
	if rule := policy.Unopened(host); rule != nil {
		return fmt.Errorf("rule %s lets connections through unopened", rule.ID)
	}
	ports := policy.CredentialPorts(host, credential)
	if len(ports) == 0 {
		return errors.New("no rule in force sends the secret there")
	}
	for _, port := range ports {
		if err := s.proveIntercepted(ctx, host, port); err != nil {
			return fmt.Errorf("port %d: %w", port, err)
		}
	}
	return nil
}

// proveIntercepted is a client that says nothing after its handshake.
func (s *Server) proveIntercepted(ctx context.Context, host egress.Host, port uint16) error {
	want, err := s.cfg.Certificate(host.String())
	if err != nil {
		return fmt.Errorf("making its certificate: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, selfTestTime)
	defer cancel()
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() { //nolint:contextcheck // connections are served without one
		defer s.cfg.Trap.Catch()
		defer close(done)
		defer theirs.Close()
		defer s.survive(theirs)
		br := getReader(theirs)
		defer putReader(br)
		s.serveStream(&clientConn{Conn: theirs, br: br, origin: &origin{host: host, port: port, dialled: "the self-test"}})
	}()
	defer func() { _ = ours.Close(); <-done }()
	t := tls.Client(ours, &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: host.String(), NextProtos: []string{"http/1.1"},
		InsecureSkipVerify: true, //nolint:gosec // compared with the very certificate that is wanted
		VerifyConnection: func(cs tls.ConnectionState) error {
			if !slices.ContainsFunc(want.Certificate, func(der []byte) bool { return bytes.Equal(der, cs.PeerCertificates[0].Raw) }) {
				return errors.New("the certificate is not the run's")
			}
			return nil
		},
	})
	if err := t.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("the connection is not intercepted: %w", err)
	}
	return nil
}
