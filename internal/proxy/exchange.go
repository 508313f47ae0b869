package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/fractalboxdev/sbx/internal/coding"
	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
)

// exchange is one request on its way through the pipeline.
type exchange struct {
	s    *Server
	snap *snapshot
	o    *origin
	req  *request
	w    responder

	loaded   bool   // body holds all of the request's body
	over     bool   // body holds the beginning of one that is larger than its rule allows
	body     []byte // judged before anything was sent
	reserved int64  // of the server's budget for buffered bodies
	stream   *stream
	measured *measured // what stream reads, when that is coded
	gone     func()    // ends the exchange when the client leaves
	started  bool      // the client has seen the beginning of a response
	received int64
}

// hop is one request that may go upstream: the client's own, or what a followed
// redirect makes of it.
type hop struct {
	ask     egress.Request
	rule    *egress.Rule
	open    bool   // forwarded untouched, whatever the policy says
	host    string // the Host to send: normalised, with a port where the client wrote one
	from    string // the request that redirected here
	id      uint64
	begun   time.Time
	address string
	sends   int // how often it may have reached the host
	status  int // what the client saw
}

// handle takes one request from judging to completion.
func (s *Server) handle(o *origin, req *request, w responder) {
	x := &exchange{s: s, snap: s.current.Load(), o: o, req: req, w: w}
	ctx, cancel := x.snap.begin()
	defer cancel(nil)
	defer x.release()
	h, r := x.locate()
	switch {
	case r != nil:
	case x.snap.position == Enforce:
		r = x.admit(ctx, h)
	default:
		r = x.pass(ctx, h)
	}
	if r != nil {
		x.deny(h, r)
		return
	}
	x.forward(ctx, cancel, h)
}

// deny records a refusal and answers with it.
func (x *exchange) deny(h *hop, r *refusal) {
	if !r.unrecorded {
		x.s.deny(x.row(h), r)
	}
	x.answer(r)
}

// answer sends a refusal, or breaks off a response that has begun.
func (x *exchange) answer(r *refusal) {
	if x.started {
		x.w.abort()
		return
	}
	x.started = true
	status := r.status
	if agent, _ := x.req.fields.get("User-Agent"); status == statusGate && strings.HasPrefix(agent, "yarn/1.") {
		status = gateForYarn1
	}
	sendRefusal(x.w, r, status)
}

// gateForYarn1 is the gate's status for yarn's classic line. That repeats every
// request that a 5xx answers, four times, 3 s apart, and no setting ends it
// (RequestManager.execute in its lib/cli.js); a 403 is final for it.
const gateForYarn1 = 403

// sendRefusal writes a response that is all ours. Its reason phrase is what
// package managers print, so it carries the code as well.
func sendRefusal(w responder, r *refusal, status int) {
	if status == 0 {
		w.abort()
		return
	}
	text := r.text()
	var fs fields
	if text != "" {
		fs = append(fs, field{"Content-Type", "text/plain; charset=utf-8"})
	}
	if c, ok := w.(interface{ closing() }); ok {
		c.closing()
	}
	err := w.start(status, "sbx "+string(r.code), fs, int64(len(text)))
	if err == nil {
		err = w.finish([]byte(text), nil)
	}
	if err != nil {
		w.abort()
	}
}

// row begins the record of a hop.
func (x *exchange) row(h *hop) event.Request {
	row := event.Request{
		ID:             h.id,
		Protocol:       h.ask.Protocol.String(),
		Host:           h.ask.Host.String(),
		Port:           h.ask.Port,
		Method:         egress.CleanPath(h.ask.Method),
		Path:           egress.CleanPath(h.ask.Path.Raw()),
		RedirectedFrom: h.from,
	}
	if row.Path == "" {
		row.Path = egress.CleanPath(pathOf(x.req.target))
	}
	if row.Host == "" {
		row.Host = egress.CleanPath(x.claimed())
	}
	if h.rule != nil {
		row.Rule = h.rule.ID
	}
	return row
}

// claimed is the authority of a request in its own words, for records.
func (x *exchange) claimed() string {
	switch {
	case x.req.absolute != "":
		return egress.MaskUserinfo(x.req.absolute)
	case len(x.req.hosts) > 0:
		return egress.MaskUserinfo(x.req.hosts[0])
	}
	return x.o.host.String()
}

// locate normalises where the request goes. The hop it returns is good enough
// for a record even when it is refused.
func (x *exchange) locate() (*hop, *refusal) {
	h := &hop{begun: x.s.cfg.Clock(), ask: egress.Request{
		Protocol: x.o.protocol(), Method: x.req.method, BodyLength: x.req.length, Port: x.o.port,
	}}
	if r := x.agree(h); r != nil {
		return h, r
	}
	path, query, err := egress.ParseTarget(x.req.target)
	if err != nil {
		// The gate speaks first: a host that is not granted stays a 520.
		if d := x.snap.policy.Decide(h.ask); d.Stage == egress.StageGate {
			return h, refuseDecision(d)
		}
		return h, refuse(egress.CodePathMalformed, err.Error())
	}
	h.ask.Path, h.ask.Query = path, query
	h.ask.Coded = coding.Grows(codings(x.req.fields))
	return h, nil
}

// admit judges a hop to the end and records it as allowed.
func (x *exchange) admit(ctx context.Context, h *hop) *refusal {
	if r := x.judge(ctx, h); r != nil {
		return r
	}
	return x.recordAllowed(h, nil)
}

// judge takes a hop through the whole decision.
func (x *exchange) judge(ctx context.Context, h *hop) *refusal {
	d := x.snap.policy.Decide(h.ask)
	if d.Verdict != egress.Allow {
		return x.refuseDecision(h, d)
	}
	h.rule = d.Rule
	for _, step := range []func(context.Context, *hop) *refusal{
		x.admitUpgrade, x.admitBody, x.admitCredential, x.admitBudget, x.admitAddress,
	} {
		if r := step(ctx, h); r != nil {
			if r.rule == "" {
				r.rule = h.rule.ID
			}
			return r
		}
	}
	return revoked(ctx)
}

// refuseDecision calls the refusal of what was granted until the run ended what it is:
// what the command leaves behind may be read only then.
func (x *exchange) refuseDecision(h *hop, d egress.Decision) *refusal {
	if last := x.snap.before; last != nil && last.policy.Decide(h.ask).Stage == egress.StageHandler {
		d.Code, d.Reason = egress.CodeGrantNotApplied, egress.Describe(h.ask)+": the grant was revoked before the request was read"
	}
	return refuseDecision(d)
}

func revoked(ctx context.Context) *refusal {
	if ctx.Err() == nil {
		return nil
	}
	r := refuse(egress.CodeGrantNotApplied, "the grant was revoked while the request was judged")
	r.final = true
	return r
}

// recordAllowed records a hop that is forwarded; judged is what enforce would have
// refused it for.
func (x *exchange) recordAllowed(h *hop, judged *refusal) *refusal {
	h.id = x.s.cfg.NextID()
	row := x.row(h)
	row.Verdict, row.Code = "allow", string(egress.CodeAllowed)
	if judged != nil {
		row.WouldDeny, row.Source, row.Code, row.Reason = true, judged.source, string(judged.code), judged.reason
		row.Rule = judged.rule
	}
	if sl := x.sending(h); sl != nil {
		row.Credential = sl.Secret
	}
	if err := x.s.record(row); err != nil {
		h.id = 0
		r := refuse(egress.CodeRecordFailed, "")
		var b interface{ Code() string }
		if errors.As(err, &b) {
			r.code = egress.Code(b.Code())
		}
		r.unrecorded, r.final = true, true
		return r
	}
	return nil
}

// admitUpgrade refuses every upgrade but a granted websocket; others were
// stripped when the request was filtered and never take effect.
func (x *exchange) admitUpgrade(_ context.Context, h *hop) *refusal {
	switch {
	case x.req.upgrade != "websocket":
		return nil
	case h.ask.Method != "GET" || h.ask.BodyLength != 0: // RFC 6455 section 4.1
		return refuse(egress.CodeUpgrade, egress.Describe(h.ask)+": a websocket begins with a GET without a body")
	case !h.rule.WebSocket:
		return refuse(egress.CodeUpgrade, egress.Describe(h.ask)+": a websocket is not granted by "+h.rule.ID)
	case x.s.vault.hosts[h.ask.Host] != nil:
		return refuse(egress.CodeUpgrade, egress.Describe(h.ask)+": the host has a credential, and frames cannot be searched for it")
	}
	return nil
}

// bufferBelow is the cap up to which bodies are judged as a whole before
// anything reaches upstream, in bytes.
const bufferBelow = 1 << 20

// admitBody reads a body that has to be judged, or prepares to count one that
// is streamed.
func (x *exchange) admitBody(_ context.Context, h *hop) *refusal {
	limit := h.rule.BodyCap(h.ask.Method)
	if h.ask.BodyLength == 0 && (!h.rule.Body.Asserts() || limit == 0) {
		return nil
	}
	encoding, kind, r := x.bodyFields(h)
	if r != nil {
		return r
	}
	if !x.loaded && !h.rule.Body.Asserts() && limit > bufferBelow {
		body, r := x.measure(h, coding.Parse(encoding), limit, nil)
		x.stream = &stream{r: body, left: limit, snap: x.snap, rule: h.rule}
		return r
	}
	if !x.loaded && h.ask.BodyLength != 0 {
		if r := x.load(h, limit); r != nil {
			return r
		}
	}
	// No body is one that fulfils no assertion.
	d := x.snap.policy.DecideBody(h.ask, x.body, encoding, kind)
	if d.Verdict != egress.Allow {
		return refuseDecision(d)
	}
	h.rule = d.Rule
	return nil
}

// bodyFields returns what says how to read the body. Upstream must read it the same
// way: a field that occurs twice, or that the client lists as hop-by-hop, would let
// it choose another.
func (x *exchange) bodyFields(h *hop) (encoding, kind string, r *refusal) {
	hops := connectionTokens(x.req.fields)
	read := func(name string) string {
		value, n := x.req.fields.get(name)
		if n > 1 || named(hops, name) {
			r = refuse(egress.CodeMalformed, egress.Describe(h.ask)+": "+name+" is given twice or as hop-by-hop")
			r.status = 400
		}
		return value
	}
	encoding, kind = read("Content-Encoding"), read("Content-Type")
	return encoding, kind, r
}

// load reads the whole body into memory, within the run's budget for that.
func (x *exchange) load(h *hop, limit int64) *refusal {
	want := h.ask.BodyLength
	if want < 0 {
		want = limit
	}
	if !x.s.held.bodies.take(want) {
		return refuseWire(x.s.errTooMuch())
	}
	x.reserved += want
	if err := x.w.proceed(); err != nil {
		return refuseWire(malformed("the client left before its body: " + err.Error()))
	}
	body, err := io.ReadAll(io.LimitReader(x.req.body, limit+1))
	wire, isWire := errors.AsType[*wireError](err)
	switch {
	case isWire && (wire.code != egress.CodeMalformed || wire.recorded):
		return refuseWire(wire)
	case err != nil:
		return refuseWire(malformed("reading the body: " + err.Error()))
	case int64(len(body)) > limit:
		x.over, x.body = true, body
		return refuse(egress.CodeBodyTooLarge, fmt.Sprintf("%s: body is larger than %d bytes", egress.Describe(h.ask), limit))
	}
	x.loaded, x.body = true, body
	h.ask.BodyLength = int64(len(body))
	return nil
}

func (x *exchange) release() {
	if x.measured != nil {
		x.measured.close()
	}
	x.s.held.bodies.give(x.reserved)
	x.reserved = 0
}

func (x *exchange) admitBudget(_ context.Context, h *hop) *refusal {
	if h.rule.UploadBudget == (egress.Budget{}) {
		return nil
	}
	if !x.snap.budgets.request(h.rule, int64(len(x.body))) {
		return refuse(egress.CodeUploadBudget, egress.Describe(h.ask)+": the upload budget of "+h.rule.ID+" is spent")
	}
	return nil
}

// admitAddress resolves the host before the record, so that an internal address
// is a denial and not a failure. A pooled connection's address passed before.
func (x *exchange) admitAddress(ctx context.Context, h *hop) *refusal {
	if x.s.cfg.Vet == nil || x.snap.pool.has(x.key(h)) {
		return nil
	}
	err := x.s.cfg.Vet(ctx, h.ask.Host, h.ask.Port, x.allowance(h))
	if r := refuseAddress(h, err); r != nil {
		return r
	}
	return nil // a failing lookup is the upstream's failure; the dial reports it
}

// refuseAddress is the denial that an error of the guard means, nil for other errors.
func refuseAddress(h *hop, err error) *refusal {
	if _, ok := errors.AsType[*egress.AddressError](err); !ok {
		return nil
	}
	r := refuse(egress.CodeAddressRefused, egress.Describe(h.ask)+": "+err.Error())
	r.final = true
	return r
}

// agree checks that all the places which name an authority name the same one,
// and puts it into the hop.
func (x *exchange) agree(h *hop) *refusal {
	scheme := x.o.protocol()
	if x.o.explicit {
		if x.req.absolute == "" {
			return refuseWire(malformed("a request to the proxy without an absolute target"))
		}
		if x.req.scheme == "https" {
			return refuseWire(malformed("https through the proxy without CONNECT"))
		}
	}
	claims := make([]string, 0, 2)
	if x.req.absolute != "" {
		claims = append(claims, x.req.absolute)
	}
	claims = append(claims, x.req.hosts...)
	host, port := x.o.host, x.o.port
	bad := false
	for i, claim := range claims {
		ch, cp, err := egress.ParseAuthority(claim, scheme.DefaultPort())
		if err != nil {
			return refuseWire(malformed(err.Error()))
		}
		if i == 0 {
			h.ask.Host, h.ask.Port = ch, cp
			h.host = hostField(ch, cp, claim)
		}
		if host.IsZero() {
			host, port = ch, cp
		}
		bad = bad || ch != host || cp != port
	}
	if len(claims) == 0 {
		h.ask.Host, h.ask.Port = host, port
		h.host = authorityText(host, port, scheme.DefaultPort())
	}
	if x.req.scheme != "" && x.req.scheme != scheme.String() {
		bad = true
	}
	if bad || !x.o.sni.IsZero() && x.o.sni != host || x.req.method == "CONNECT" {
		return x.disagree(bad)
	}
	return nil
}

func (x *exchange) disagree(bad bool) *refusal {
	if x.req.method == "CONNECT" && !bad {
		return refuse(egress.CodeConnect, "CONNECT inside of a connection to "+x.o.host.String())
	}
	r := refuse(egress.CodeAuthorityMismatch, "the request names more than one authority")
	r.status = 421
	if x.o.dialled != "" {
		r.authorities = append(r.authorities, x.o.dialled)
	}
	if x.o.sniText != "" {
		r.authorities = append(r.authorities, "server name "+egress.CleanPath(x.o.sniText))
	}
	if x.req.absolute != "" {
		r.authorities = append(r.authorities, "target "+egress.CleanPath(strings.TrimPrefix(x.req.scheme+"://"+x.req.absolute, "://")))
	}
	for _, host := range x.req.hosts {
		r.authorities = append(r.authorities, "Host "+egress.CleanPath(host))
	}
	r.reason += ": " + strings.Join(r.authorities, ", ")
	return r
}

// hostField is the normalised Host to send; the client's choice to write the
// port is kept, because signatures cover it.
func hostField(host egress.Host, port uint16, claim string) string {
	if strings.LastIndexByte(claim, ':') <= strings.LastIndexByte(claim, ']') {
		return host.InURL()
	}
	return fmt.Sprintf("%s:%d", host.InURL(), port)
}

func authorityText(host egress.Host, port, normal uint16) string {
	if port == normal {
		return host.InURL()
	}
	return fmt.Sprintf("%s:%d", host.InURL(), port)
}
