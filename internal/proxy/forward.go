package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/fractalboxdev/sbx/internal/coding"
	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
)

var errClientGone = errors.New("the client left")

// forward sends an admitted request upstream, follows redirects where the rule
// says so, and streams the response.
func (x *exchange) forward(ctx context.Context, cancel context.CancelCauseFunc, h *hop) {
	x.gone = func() { cancel(errClientGone) }
	x.w.watch(x.gone)
	for hops := 0; ; hops++ {
		resp, err := x.send(ctx, h)
		if err != nil {
			x.failed(ctx, h, err)
			return
		}
		if r := x.guard(ctx, h, resp); r != nil {
			resp.close(false)
			if r.code == egress.CodeBoundResponses && ctx.Err() != nil { // it waited in vain
				x.failed(ctx, h, context.Cause(ctx))
				return
			}
			h.status = r.status
			x.deny(h, r)
			x.complete(h, errors.New(string(r.code)))
			return
		}
		next, r := x.redirect(ctx, h, resp, hops)
		switch {
		case r != nil:
			resp.close(false)
			x.complete(h, nil)
			x.deny(next, r)
			return
		case next != nil:
			resp.discard()
			x.complete(h, nil)
			h = next
			continue
		}
		x.relay(ctx, h, resp)
		return
	}
}

// key is the set of upstream connections that a hop may use. HTTP/2 upstream is
// offered exactly to HTTP/2 clients, so that both legs can carry the same things.
func (x *exchange) key(h *hop) poolKey {
	return poolKey{
		tls:       h.ask.Protocol == egress.ProtocolHTTPS,
		h2:        x.req.multiplex,
		host:      h.ask.Host,
		port:      h.ask.Port,
		allowance: x.allowance(h),
	}
}

func (x *exchange) send(ctx context.Context, h *hop) (*response, error) {
	socket := x.req.upgrade == "websocket"
	out := &outgoing{
		key:    x.key(h),
		method: h.ask.Method,
		target: x.outTarget(h),
		host:   h.host,
		fields: x.outFields(h, socket),
		length: h.ask.BodyLength,
		socket: socket,
	}
	switch {
	case h.ask.BodyLength == 0:
		out.declares = x.declaresEmpty(h)
	case x.loaded:
		out.body = x.body
	default:
		out.stream, out.interrupt = x.stream, x.req.interrupt
		// While the body comes in, a client that leaves shows there.
		out.uploaded = func() { x.w.watch(x.gone) }
		out.expects, out.proceed = x.req.expects, x.w.proceed
	}
	if h.rule.UploadBudget != (egress.Budget{}) {
		out.again = func() bool { return x.snap.budgets.request(h.rule, int64(len(out.body))) }
	}
	if sl := x.sending(h); sl != nil {
		out.left = func() { sl.injected.Add(1) }
	}
	resp, err := x.snap.pool.roundTrip(ctx, out)
	h.sends = out.sends
	if resp != nil {
		h.address = resp.address
	}
	return resp, err
}

// declaresEmpty reports whether the client said that its body is empty; some
// servers want to be told for POST.
func (x *exchange) declaresEmpty(h *hop) bool {
	_, n := x.req.fields.get("Content-Length")
	return n > 0 && h.ask.Method == x.req.method
}

// relay streams a response to the client.
func (x *exchange) relay(ctx context.Context, h *hop, resp *response) {
	if resp.status == 101 {
		x.relaySocket(ctx, h, resp)
		return
	}
	err := x.copyOut(h, resp)
	resp.close(err == nil)
	if err != nil {
		x.w.abort()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else if r := x.lateRefusal(h, err); r != nil && !r.unrecorded {
			x.s.deny(x.row(h), r)
		}
	}
	x.complete(h, err)
}

// copyOut sends head, body and trailers of one response, each part as it comes.
func (x *exchange) copyOut(h *hop, resp *response) error {
	known := resp.length >= 0
	h.status = resp.status
	x.started = true
	if err := x.w.start(resp.status, resp.reason, responseFields(resp.fields, h.rule, known || resp.bodyless), resp.length); err != nil {
		return clientError{err}
	}
	if resp.bodyless || resp.length == 0 {
		return wrapClient(x.w.finish(nil, nil))
	}
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	if resp.waits() {
		if err := x.w.write(nil); err != nil {
			return clientError{err}
		}
	}
	for {
		n, err := resp.body.Read(*buf)
		x.received += int64(n)
		if errors.Is(err, io.EOF) {
			return wrapClient(x.w.finish((*buf)[:n], trailerFields(resp.trailer(), h.rule)))
		}
		if n > 0 {
			if werr := x.w.write((*buf)[:n]); werr != nil {
				return clientError{werr}
			}
		}
		if err != nil {
			return err
		}
	}
}

// clientError marks a failure on the client's side.
type clientError struct{ err error }

func (e clientError) Error() string { return errClientGone.Error() + ": " + e.err.Error() }
func (e clientError) Unwrap() error { return e.err }

func wrapClient(err error) error {
	if err == nil {
		return nil
	}
	return clientError{err}
}

// failed answers a request that was allowed but got no response.
func (x *exchange) failed(ctx context.Context, h *hop, err error) {
	if r := x.lateRefusal(h, err); r != nil {
		h.status = r.status
		x.deny(h, r)
		x.complete(h, errors.New(string(r.code)))
		return
	}
	if ctx.Err() != nil {
		x.w.abort()
		x.complete(h, context.Cause(ctx))
		return
	}
	h.status = 502
	sendFailure(x.w, upstreamText(err))
	x.complete(h, err)
}

// lateRefusal is a denial that only shows while the request is under way: a body
// that grew over its cap, or an address that changed after it was vetted. Its row
// carries the id of the request that it takes back.
func (x *exchange) lateRefusal(h *hop, err error) *refusal {
	if r := refuseAddress(h, err); r != nil {
		return r
	}
	if errors.Is(err, errNoRoom) {
		return x.s.refuseNoRoom(h)
	}
	if errors.Is(err, errEchoed) || errors.Is(err, errUnsearched) {
		return x.unsafe(h, err)
	}
	if x.stream == nil {
		return nil
	}
	_, cut := x.stream.state()
	if cut == nil && x.req.fault != nil {
		cut = x.req.fault()
	}
	var wire *wireError
	switch {
	case errors.Is(cut, errOverCap):
		return refuse(egress.CodeBodyTooLarge, egress.Describe(h.ask)+": "+errOverCap.Error())
	case errors.Is(cut, coding.ErrCoding):
		return refuse(egress.CodeBodyEncoding, egress.Describe(h.ask)+": "+cut.Error())
	case errors.Is(cut, errOverBudget):
		return refuse(egress.CodeUploadBudget, egress.Describe(h.ask)+": "+errOverBudget.Error())
	case errors.As(cut, &wire):
		return refuseWire(wire)
	}
	return nil
}

// upstreamText tells the client which part of the way failed. The cause itself
// may describe the host's network, so only the record has it.
func upstreamText(err error) string {
	var cert *tls.CertificateVerificationError
	var dns *net.DNSError
	var wire *wireError
	switch {
	case errors.As(err, &cert):
		return "upstream certificate: " + cert.Err.Error()
	case errors.As(err, &dns):
		return "upstream name could not be resolved"
	case errors.As(err, &wire):
		return "upstream answer is malformed: " + wire.reason
	}
	return "upstream connection failed"
}

// sendFailure answers with 502: not a denial, so neither 403 nor 520.
func sendFailure(w responder, text string) {
	text = "sbx: " + text + "\n"
	err := w.start(502, "sbx upstream-failed", fields{{"Content-Type", "text/plain; charset=utf-8"}}, int64(len(text)))
	if err == nil {
		err = w.finish([]byte(text), nil)
	}
	if err != nil {
		w.abort()
	}
}

// complete records what became of an admitted hop.
func (x *exchange) complete(h *hop, err error) {
	x.notePassed(h)
	now := x.s.cfg.Clock()
	c := event.Completion{
		Time: now, Run: x.s.cfg.Run, ID: h.id, Event: "completed",
		Status: h.status, Address: h.address, Sent: x.sent(h), Millis: now.Sub(h.begun).Milliseconds(),
	}
	if h.status != 0 {
		c.Received = x.received
	}
	if h.sends > 1 {
		c.Attempts = h.sends
	}
	if err != nil {
		c.Error = err.Error()
	}
	x.s.cfg.Recorder.Complete(c)
}

func (x *exchange) sent(h *hop) int64 {
	switch {
	case h.ask.BodyLength == 0:
		return 0
	case x.loaded:
		return int64(len(x.body)) * int64(h.sends)
	case x.stream != nil:
		sent, _ := x.stream.state()
		return sent
	}
	return 0
}

// maxHops is how many redirects a rule with redirects = "follow" follows.
const maxHops = 5

// redirect judges the Location of a 3xx response. It returns a refusal with the
// hop to record it under, the next hop to follow, or neither: pass it on.
func (x *exchange) redirect(ctx context.Context, h *hop, resp *response, hops int) (*hop, *refusal) {
	location, n := resp.fields.get("Location")
	if resp.status/100 != 3 || n == 0 || h.open {
		return nil, nil
	}
	next := x.target(h, resp.status)
	if r := next.parse(h, location, n); r != nil {
		return next, r
	}
	d := x.judgeTarget(next)
	if d.Verdict != egress.Allow {
		r := refuse(egress.CodeRedirect, d.Reason+" (redirected from "+next.from+")")
		r.rule = d.Nearest
		return next, r
	}
	if h.rule.Redirects != egress.RedirectFollow {
		return nil, nil
	}
	if hops >= maxHops {
		return next, refuse(egress.CodeRedirectHops, egress.Describe(next.ask)+": more than 5 redirects in a row")
	}
	if next.ask.BodyLength != 0 && !x.loaded {
		return next, refuse(egress.CodeRedirect, egress.Describe(next.ask)+": the body was streamed and cannot be sent again")
	}
	if r := x.admit(ctx, next); r != nil {
		return next, r
	}
	return next, nil
}

// target begins the hop that a redirect leads to: 307 and 308 keep method and
// body, others become GET, and HEAD stays HEAD (RFC 9110 section 15.4).
func (x *exchange) target(h *hop, status int) *hop {
	next := &hop{begun: x.s.cfg.Clock(), from: egress.Describe(h.ask), ask: h.ask}
	next.ask.Path, next.ask.Query = egress.Path{}, egress.Query{}
	if status != 307 && status != 308 {
		if h.ask.Method != "HEAD" {
			next.ask.Method = "GET"
		}
		next.ask.BodyLength = 0
	}
	return next
}

func (x *exchange) judgeTarget(next *hop) egress.Decision {
	d := x.snap.policy.Decide(next.ask)
	if d.Verdict != egress.Allow || next.ask.BodyLength == 0 || !x.loaded {
		return d
	}
	encoding, _ := x.req.fields.get("Content-Encoding")
	kind, _ := x.req.fields.get("Content-Type")
	return x.snap.policy.DecideBody(next.ask, x.body, encoding, kind)
}

// parse resolves a Location against the hop that sent it (RFC 3986 section 5).
func (next *hop) parse(h *hop, location string, n int) *refusal {
	bad := func(why string) *refusal {
		return refuse(egress.CodeRedirect, "the redirect from "+next.from+" "+why)
	}
	if n > 1 {
		return bad("has more than one Location")
	}
	location, _, _ = strings.Cut(location, "#")
	scheme, rest, ok := strings.Cut(location, ":")
	switch {
	case ok && isScheme(scheme):
		p, err := egress.ParseProtocol(strings.ToLower(scheme))
		if err != nil || p == egress.ProtocolTCP || !strings.HasPrefix(rest, "//") {
			next.ask.Protocol = egress.ProtocolNone
			return bad("has the scheme " + egress.CleanPath(scheme))
		}
		next.ask.Protocol = p
		location = rest
	}
	target := location
	if after, ok := strings.CutPrefix(location, "//"); ok {
		end := strings.IndexAny(after, "/?")
		if end < 0 {
			end = len(after)
		}
		host, port, err := egress.ParseAuthority(after[:end], next.ask.Protocol.DefaultPort())
		if err != nil {
			return bad("has no valid authority: " + err.Error())
		}
		next.ask.Host, next.ask.Port = host, port
		target = after[end:]
		if !strings.HasPrefix(target, "/") {
			target = "/" + target
		}
	}
	next.host = authorityText(next.ask.Host, next.ask.Port, next.ask.Protocol.DefaultPort())
	path, query, err := egress.ParseTarget(resolve(h, target))
	if err != nil {
		return bad("has no valid path: " + err.Error())
	}
	next.ask.Path, next.ask.Query = path, query
	return nil
}

func isScheme(s string) bool {
	for i := range len(s) {
		c := s[i] | 0x20
		if (c < 'a' || c > 'z') && (i == 0 || (s[i] < '0' || s[i] > '9') && s[i] != '+' && s[i] != '-' && s[i] != '.') {
			return false
		}
	}
	return s != ""
}

// resolve makes a relative reference absolute. Dot segments that the merge leaves
// inside are removed as a client would, so that what is judged is what it asks.
func resolve(h *hop, ref string) string {
	if strings.HasPrefix(ref, "/") {
		return ref
	}
	base := h.ask.Path.Raw()
	switch {
	case ref == "":
		return egress.Target(h.ask.Path, h.ask.Query)
	case strings.HasPrefix(ref, "?"):
		return base + ref
	}
	path, query, found := strings.Cut(ref, "?")
	segments := strings.Split(base[:strings.LastIndexByte(base, '/')+1]+path, "/")[1:]
	out := make([]string, 0, len(segments))
	for i, s := range segments {
		last := i == len(segments)-1
		switch {
		case s == "..":
			out = out[:max(len(out)-1, 0)]
		case s != ".":
			out = append(out, s)
			continue
		}
		if last {
			out = append(out, "")
		}
	}
	target := "/" + strings.Join(out, "/")
	if found {
		target += "?" + query
	}
	return target
}
