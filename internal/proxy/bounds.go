package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/fractalboxdev/sbx/internal/egress"
)

// gauge counts what all connections of a Server hold of one kind at once.
type gauge struct {
	used  atomic.Int64
	limit int64
}

// take adds n, unless that passes the limit.
func (g *gauge) take(n int64) bool {
	if g.used.Add(n) > g.limit {
		g.used.Add(-n)
		return false
	}
	return true
}

// give takes back what take added.
func (g *gauge) give(n int64) { g.used.Add(-n) }

// room is a gauge whose takers may wait for what others give back.
type room struct {
	gauge
	mu    sync.Mutex
	freed chan struct{} // closed when something was given back; nil: nobody waits
}

// wait adds n as soon as that fits, unless ctx ends before.
func (r *room) wait(ctx context.Context, n int64) bool {
	for n <= r.limit && ctx.Err() == nil {
		if r.take(n) {
			return true
		}
		r.mu.Lock()
		if r.freed == nil {
			r.freed = make(chan struct{})
		}
		freed := r.freed
		r.mu.Unlock()
		if r.take(n) { // what was given back before freed was there
			return true
		}
		select {
		case <-freed:
		case <-ctx.Done():
		}
	}
	return false
}

// give takes back what was added, and tells those who wait.
func (r *room) give(n int64) {
	r.gauge.give(n)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.freed != nil {
		close(r.freed)
		r.freed = nil
	}
}

// gauges are the bounds that count over the whole Server: what one connection may
// hold is little, but the code inside opens as many as it likes.
type gauges struct {
	streams gauge // HTTP/2 requests
	heads   gauge // bytes of request heads
	bodies  gauge // bytes of request bodies

	responses room // bytes of responses that are searched, with their decoders
}

func (g *gauges) init(l Limits) {
	g.streams.limit, g.heads.limit, g.bodies.limit = int64(l.Streams), l.HeadBytes, l.BufferedBytes
	g.responses.limit = l.SearchedBytes
}

// fieldOverhead is what a field costs besides its bytes (RFC 9113 section 6.5.2).
const fieldOverhead = 32

// size is what a request head keeps in memory, in bytes.
func (req *request) size() int64 {
	n := len(req.method) + len(req.target) + len(req.absolute)
	for i := range req.fields {
		n += len(req.fields[i].name) + len(req.fields[i].value) + fieldOverhead
	}
	return int64(n)
}

// admitHead counts a request head until giveHead.
func (s *Server) admitHead(size int64) *refusal {
	if s.held.heads.take(size) {
		return nil
	}
	return refuseBound(egress.CodeBoundHeads, fmt.Sprintf("more than %d bytes of request heads at once", s.cfg.Limits.HeadBytes))
}

func (s *Server) giveHead(size int64) { s.held.heads.give(size) }

// admitStream counts an HTTP/2 request with its head until giveStream.
func (s *Server) admitStream(size int64) *refusal {
	if !s.held.streams.take(1) {
		return refuseBound(egress.CodeBoundStreams, fmt.Sprintf("more than %d HTTP/2 requests at once", s.cfg.Limits.Streams))
	}
	r := s.admitHead(size)
	if r != nil {
		s.held.streams.give(1)
	}
	return r
}

func (s *Server) giveStream(size int64) {
	s.held.streams.give(1)
	s.giveHead(size)
}

// refuseBound is the refusal of what would be too much for this run; no position
// lets it pass.
func refuseBound(code egress.Code, reason string) *refusal {
	r := refuse(code, reason)
	r.final = true
	return r
}

// errNoRoom ends a searched response that would hold more than the run may.
var errNoRoom = errors.New("the responses that are searched for a secret hold as much as they may")

// refuseNoRoom is the refusal of such a response.
func (s *Server) refuseNoRoom(h *hop) *refusal {
	r := refuseBound(egress.CodeBoundResponses, fmt.Sprintf("%s: %v, %d bytes at once", egress.Describe(h.ask), errNoRoom, s.cfg.Limits.SearchedBytes))
	r.rule = h.rule.ID
	return r
}

// errTooMuch ends a body that would be more than the run may hold.
func (s *Server) errTooMuch() *wireError {
	return &wireError{
		status: 403, code: egress.CodeBoundBodies,
		reason: fmt.Sprintf("more than %d bytes of request bodies at once", s.cfg.Limits.BufferedBytes),
	}
}
