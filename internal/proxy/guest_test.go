package proxy_test

import (
	"net"
	"testing"
)

// Connections that are answered elsewhere fill the same bound, and free it.
func TestGuestsCountAsConnections(t *testing.T) {
	w := newWorld(t, func(c *proxyConfig) { c.Limits.Connections = 2 })
	w.raw("ok.test", 443)
	ours, _ := net.Pipe()
	guest, ok := w.server.Admit(ours)
	if !ok {
		t.Fatal("a connection within the limit was refused")
	}
	again, _ := net.Pipe()
	if _, ok := w.server.Admit(again); ok {
		t.Error("a connection beyond the limit was admitted")
	}
	if row := w.rows.recorded(1)[0]; row.Code != "bound-connections" || row.Verdict != "deny" {
		t.Errorf("%+v", row)
	}
	if err := guest.Close(); err != nil {
		t.Fatal(err)
	}
	last, _ := net.Pipe()
	if _, ok := w.server.Admit(last); !ok {
		t.Error("the place of a connection that ended was not given back")
	}
	if err := w.server.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := last.Write([]byte("x")); err == nil {
		t.Error("Close left a connection open")
	}
	if _, ok := w.server.Admit(ours); ok {
		t.Error("a connection was admitted after Close")
	}
}
