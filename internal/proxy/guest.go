package proxy

import "net"

// Admit counts a connection that another server of the run answers into the bound of
// connections, until it is closed. One beyond the bound is recorded and reset.
func (s *Server) Admit(c net.Conn) (net.Conn, bool) {
	s.mu.Lock()
	closed, full := s.closed, len(s.conns) >= s.cfg.Limits.Connections
	if !closed && !full {
		s.conns[c] = struct{}{}
	}
	s.mu.Unlock()
	switch {
	case closed:
		_ = c.Close()
		return nil, false
	case full:
		s.refuseFull(c)
		return nil, false
	}
	return &guest{Conn: c, server: s}, true
}

// guest is a connection that is counted here and answered elsewhere.
type guest struct {
	net.Conn
	server *Server
}

// Close gives the connection's place back.
func (g *guest) Close() error {
	g.server.forget(g.Conn)
	return nil
}
