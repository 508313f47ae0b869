package fence

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/grant"
	"github.com/fractalboxdev/sbx/internal/handshake"
	"github.com/fractalboxdev/sbx/internal/host"
	"github.com/fractalboxdev/sbx/internal/netns"
	"github.com/fractalboxdev/sbx/internal/pki"
	"github.com/fractalboxdev/sbx/internal/proxy"
	"github.com/fractalboxdev/sbx/internal/sandbox"
	"github.com/fractalboxdev/sbx/internal/stdio"
	"github.com/fractalboxdev/sbx/internal/trap"
	"github.com/fractalboxdev/sbx/internal/trust"
)

// Paths inside of what only this run has.
const (
	caPath     = "/run/sbx/ca.pem"
	bundlePath = "/run/sbx/bundle.pem"
)

// startLimit is how long the start may take: a runner that is stopped, or hangs on a dead
// file system, would keep the caller for ever.
const startLimit = 60 * time.Second

// ensure makes everything at the floor: ticket, records, sandbox, network. The
// runner gets its specification as early as possible: starting the container takes
// longer than all the rest, which is made meanwhile.
func (f *fence) ensure(ctx context.Context) error {
	for _, part := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"host", f.lookAtHost},
		{"ticket", f.admit},
		{"position", f.settlePosition},
		{"records", f.openRecords},
		{"rollout", f.beginObserved},
		{"limits", f.makeLimits},
		{"plan", f.plan},
		{"spec", f.sendSpec},
		{"network", f.makeNetwork},
		{"listen", f.listen},
		{"started", f.awaitStarted},
	} {
		if err := fault(stepEnsure+"/"+part.name, f.o.Self.Runner); err != nil {
			return err
		}
		if err := part.do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// lookAtHost reads the host's facts, while the store is being opened.
func (f *fence) lookAtHost(context.Context) (err error) {
	f.facts, f.who, err = f.look()
	return err
}

// makeNetwork makes the servers of the sandbox's way out, and the files that only this
// run has.
func (f *fence) makeNetwork(context.Context) error {
	ca, err := pki.NewAuthority(time.Now())
	if err != nil {
		return err
	}
	if n := f.o.Bounds.Certificates; n > 0 {
		ca.LimitLeaves(n)
	}
	f.network = newNetwork(f.o, f.id, f.run, ca, f.probes, proxy.Config{
		Credentials: f.proxyCredentials(), Position: f.o.Position, Trap: f.faults.catch, Limits: f.o.Bounds.proxy(),
	})
	f.network.trap = f.faults.catch
	f.runFiles, err = f.trust(ca.CertificatePEM())
	return err
}

// trust makes the two certificate files of the run, and has the roots for upstream
// connections read meanwhile where the grant can lead to any.
func (f *fence) trust(runCA []byte) (map[string][]byte, error) {
	host, err := trust.HostBundle()
	if err != nil {
		return nil, err
	}
	getenv := func(key string) string {
		value, _ := lookup(f.o.Env, key)
		return value
	}
	extras := trust.FindExtras(getenv, f.writableInside)
	switch {
	case f.o.StandIn != nil:
		f.roots = func() (*x509.CertPool, error) { return f.o.StandIn.Roots, nil }
	case f.derived.Grant.Policy() != nil || f.o.Position != proxy.Enforce:
		pool := trust.UpstreamPool(host, extras)
		f.roots = async(func() (*x509.CertPool, error) { return pool(), nil })
	}
	pack, err := trust.Build(host, extras, runCA)
	pack = brokenPack(pack)
	return map[string][]byte{caPath: pack.CA, bundlePath: pack.Bundle}, err
}

// openRecords begins what is recorded. From here the start has its limit: before, it
// may have waited for a slot.
func (f *fence) openRecords(context.Context) (err error) {
	if err := f.conn.LimitReceive(time.Now().Add(patience("runner", startLimit))); err != nil {
		return err
	}
	f.planLimits()
	f.run, err = artifact.Open(artifact.Options{
		StateDir: f.o.StateDir, RunID: f.id, Started: f.receipt, OnDenial: f.denied, Redact: f.redactor, Grace: f.o.Grace, Replay: f.o.Key != "",
		MaxRows: f.o.Bounds.Rows, MaxOutput: f.o.Bounds.Output,
	})
	if err != nil {
		return err
	}
	if f.o.Artifacts != "" {
		f.target, err = artifact.HoldTarget(f.o.Artifacts)
	}
	return err
}

// denied tells the caller of a new denial, unless the command has the terminal to
// itself: then the line waits.
func (f *fence) denied(d event.Denial) {
	if f.o.OnDenial == nil {
		return
	}
	if f.streams != nil && f.o.Busy != nil {
		f.o.Busy(f.streams.Raw())
	}
	f.o.OnDenial(d)
	if f.streams != nil && f.streams.InRawMode() {
		_, _ = f.o.Stderr.WriteString("\r") // the terminal itself does not return the carriage now
	}
}

// plan fills in the specification from the host's facts and the grant, and opens
// the command's streams.
func (f *fence) plan(context.Context) (err error) {
	if f.probes, err = newProbes(); err != nil {
		return err
	}
	facts, who := f.facts, f.who
	caches, err := f.caches(facts)
	if err != nil {
		return err
	}
	for i := range caches {
		base, _ := CacheDirectory(f.o.Env) // there is one: the caches lie in it
		if caches[i].Source, err = makePrivate(base, caches[i].Source); err != nil {
			return err
		}
	}
	if err := f.makeOutbox(who); err != nil {
		return err
	}
	f.spec = f.describe(facts, who, caches)
	f.spec.Probe = f.probes.plan()
	f.boundSpec(&f.spec)
	if err := f.checkExposed(); err != nil {
		return err
	}
	f.ready = async(func() (struct{}, error) { return struct{}{}, f.guard(who) })
	return f.openStreams(who)
}

// look reads the host's facts and refuses what no sandbox can be made of.
func (f *fence) look() (sandbox.Facts, identity, error) {
	if f.pathsErr != nil {
		return sandbox.Facts{}, identity{}, f.pathsErr
	}
	f.readFacts()
	facts, err := f.host.facts, f.host.err
	if err == nil {
		err = sandbox.CheckPaths(facts, f.paths)
	}
	if err == nil {
		err = f.checkOwnPaths()
	}
	if err == nil {
		err = f.takeSurvey(&facts)
	}
	if err == nil {
		err = f.checkSockets()
	}
	if err != nil {
		return facts, identity{}, err
	}
	who, err := f.identity()
	return facts, who, err
}

// hostFacts are what was read of the host.
type hostFacts struct {
	read  bool
	facts sandbox.Facts
	err   error // reported by whoever needs the facts
}

// readFacts reads the host's facts, once.
func (f *fence) readFacts() {
	if f.host.read {
		return
	}
	home, ok := lookup(f.o.Env, "HOME")
	if !ok || !path.IsAbs(home) {
		home = "/nonexistent"
	}
	request := sandbox.FactsRequest{Home: home, Path: f.searchPath(), Workdir: f.paths.Workdir}
	if u, err := user.LookupId(strconv.Itoa(f.o.Self.UID)); err == nil {
		request.Account = u.HomeDir
	}
	f.host.read = true
	f.host.facts, f.host.err = sandbox.ReadFacts(request)
}

func (f *fence) searchPath() string {
	value, _ := lookup(f.o.Env, "PATH")
	return value
}

// describe is the specification that follows from what was looked at.
func (f *fence) describe(facts sandbox.Facts, who identity, caches []sandbox.Cache) sandbox.Spec {
	return sandbox.Spec{
		Run: f.id, UID: who.uid, GID: who.gid, Mapping: who.mapping,
		Tree: sandbox.Layout(facts, sandbox.LayoutRequest{
			UID: who.uid, GID: who.gid, User: who.name, Shell: who.shell, Hostname: sandbox.Hostname, Paths: f.paths,
			Resolver: netns.AddressV4.String(), Bundle: bundlePath, Caches: caches, Outbox: f.outbox, Sockets: f.socketPaths(), Hidden: f.hidden(), Files: f.derived.Files,
		}),
		Workdir: sandbox.Workdir(facts), Argv: f.o.Argv, Env: f.environment(facts, who), WaitChildren: f.o.WaitChildren,
	}
}

// identity is who the command is, inside and on the host.
type identity struct {
	uid, gid    uint32
	name, shell string
	mapping     *sandbox.Mapping
}

// rootUID is what a command started by root sees: not 0, since without
// capabilities programs that believe to be root fail where ordinary ones work.
const rootUID = 1000

func (f *fence) identity() (identity, error) {
	shell, _ := lookup(f.o.Env, "SHELL")
	if !path.IsAbs(shell) {
		shell = "/bin/sh"
	}
	self := f.o.Self
	missing, next := []string(nil), ""
	if self.UID == 0 && !sandbox.OnlyOwnID() {
		missing, next = host.New(host.Options{}).RootAdvice()
	}
	switch {
	case len(missing) > 0:
		return identity{}, &event.Refusal{
			Kind: event.RefusedSandbox, Code: "root-without-capabilities", Next: next,
			Message: "sbx runs as root without " + strings.Join(missing, ", ") + ": the command could not be kept away from root's own files",
		}
	case self.Privileged:
	case self.UID != 0:
		return identity{uid: uint32(self.UID), gid: uint32(self.GID), name: userName(self.UID), shell: shell}, nil //nolint:gosec // ids are 32 bits
	default: // root of a user namespace with no other id: an ordinary user outside
		return identity{uid: rootUID, gid: rootUID, name: "sbx", shell: shell}, nil
	}
	mapping, err := sandbox.HostMapping(self.UID, self.GID)
	if err != nil {
		return identity{}, err
	}
	return identity{uid: rootUID, gid: rootUID, name: "sbx", shell: shell, mapping: mapping}, nil
}

func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return "user" + strconv.Itoa(uid)
}

func (f *fence) environment(facts sandbox.Facts, who identity) []string {
	set := map[string]string{}
	for _, v := range append(grant.ClientDefaults(), f.derived.Grant.Env()...) {
		set[v.Name] = v.Value
	}
	for _, c := range f.derived.Grant.Caches() {
		if c.Env != "" {
			set[c.Env] = path.Join(facts.Home, c.Path)
		}
	}
	for _, h := range f.secrets {
		if h.Placeholder != "" && h.placeholder != "" {
			set[h.Placeholder] = h.placeholder
		}
	}
	set["SBX_ARTIFACTS"] = sandbox.OutboxPath
	for _, v := range trust.Env(bundlePath, caPath) {
		set[v.Name] = v.Value
	}
	for _, v := range f.derived.ClientEnv {
		set[v.Name] = v.Value
	}
	maps.Copy(set, proxyVariables())
	return sandbox.Environment(sandbox.EnvironmentRequest{
		Caller: f.o.Env, Set: set, Extra: f.o.Extra, Home: facts.Home, User: who.name, Shell: who.shell,
		Path: sandbox.SearchPath(facts, f.searchPath()), Dir: sandbox.Workdir(facts),
	})
}

// proxyVariables are for programs that resolve nothing themselves, and for clients
// whose files in the project name a proxy that is not reached from here. Nothing
// depends on them: every other way leads to the same policy.
func proxyVariables() map[string]string {
	proxy := "http://" + netns.AddressV4.String() + ":" + strconv.Itoa(netns.ProxyPort)
	const direct = "localhost,127.0.0.1,::1"
	return map[string]string{
		"HTTP_PROXY": proxy, "http_proxy": proxy, "HTTPS_PROXY": proxy, "https_proxy": proxy,
		"NO_PROXY": direct, "no_proxy": direct,
		"npm_config_proxy": proxy, "npm_config_https_proxy": proxy, "pnpm_config_proxy": proxy, "pnpm_config_https_proxy": proxy,
		"YARN_HTTP_PROXY": proxy, "YARN_HTTPS_PROXY": proxy, "CARGO_HTTP_PROXY": proxy,
	}
}

// writableInside reports whether a sandbox may have written a path of the host's.
func (f *fence) writableInside(p string) bool {
	caches, ok := CacheDirectory(f.o.Env)
	return f.paths.Writable(p) || sandbox.Within(p, f.spec.Workdir) || ok && sandbox.Within(p, caches)
}

func (f *fence) openStreams(who identity) error {
	mode := stdio.TTYAuto
	if f.o.NoTTY {
		mode = stdio.TTYNever
	}
	if f.o.RawTerminal {
		mode |= stdio.Unfiltered
	}
	var owner *[2]int
	if m := who.mapping; m != nil {
		owner = &[2]int{int(m.KUID), int(m.KGID)}
	}
	s, err := stdio.Open(f.o.Stdin, f.o.Stdout, f.o.Stderr, mode, owner)
	if err != nil {
		return err
	}
	f.streams = s
	f.spec.Stdio = sandbox.Stdio{TTY: s.TTY, Null: s.Null, Rows: s.Rows, Cols: s.Cols}
	return nil
}

// sendSpec gives the runner what to start. Without the ticket of this very run
// nothing is sent, and so nothing starts.
func (f *fence) sendSpec(context.Context) error {
	if err := f.admission.Check(f.id, "", f.class()); err != nil {
		return err
	}
	if err := f.conn.Send(msgSpec, f.spec.Encode(), f.streams.Pipes()...); err != nil {
		return f.runnerError(err)
	}
	f.streams.Sent()
	return nil
}

// inMemory puts content into an anonymous file.
func inMemory(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(path.Base(name), unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("preparing %s: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	if _, err := file.Write(content); err != nil {
		return nil, errors.Join(fmt.Errorf("preparing %s: %w", name, err), file.Close())
	}
	return file, nil
}

// listen takes the runner's listeners, serves them at the floor, and says so,
// with the files that only this run has.
func (f *fence) listen(ctx context.Context) error {
	listeners, err := f.conn.Expect(msgListeners)
	if err != nil {
		return f.runnerError(err)
	}
	if err := f.network.serve(listeners.Files); err != nil {
		return err
	}
	if err := f.sendServing(f.runFiles); err != nil {
		return f.runnerError(err)
	}
	trap.Trap(f.faults.catch).Go(f.receive)
	return ctx.Err()
}

func (f *fence) sendServing(files map[string][]byte) error {
	var names []string
	var memory []*os.File
	defer func() {
		for _, file := range memory {
			_ = file.Close()
		}
	}()
	for name, content := range files {
		file, err := inMemory(name, content)
		if err != nil {
			return err
		}
		names, memory = append(names, name), append(memory, file)
	}
	return f.conn.Send(msgServing, []byte(strings.Join(names, "\n")), memory...)
}

// runnerError prefers the runner's own words over the broken connection.
func (f *fence) runnerError(err error) error {
	if _, said := errors.AsType[*handshake.Failure](err); !said && errors.Is(err, unix.EPIPE) {
		if _, said := f.conn.Receive(); said != nil {
			return said
		}
	}
	return err
}
