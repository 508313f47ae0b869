package fence

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/fractalboxdev/sbx/internal/artifact"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/project"
	"github.com/fractalboxdev/sbx/internal/sandbox"
)

// beginSurvey looks up the paths that were named and starts the search of what will be
// writable: in a large project it takes as long as the rest of the start.
func (f *fence) beginSurvey() {
	f.findPaths()
	f.search()
}

func (f *fence) findPaths() { f.paths, f.pathsErr = sandbox.ResolvePaths(f.o.Workdir, f.o.Paths) }

// search goes through what will be writable, beside the rest of the start.
func (f *fence) search() {
	if f.pathsErr != nil {
		return
	}
	home, _ := lookup(f.o.Env, "HOME")
	xdg, _ := lookup(f.o.Env, "XDG_CONFIG_HOME")
	request := project.Request{Roots: f.paths.Roots(), Locked: f.paths.Locked(), Lifted: f.paths.Lifted(), Home: home, XDG: xdg}
	f.searched = async(func() (project.Survey, error) { return project.Look(request) })
}

// searchAgain forgets what was found before dead runs were looked after.
func (f *fence) searchAgain() {
	if f.searched != nil {
		f.closeSurvey()
		f.search()
	}
}

func (f *fence) closeSurvey() {
	if f.searched != nil {
		survey, _ := f.searched() // its error was, or will be, taken with the survey
		survey.Close()
	}
}

// leaveSurvey closes what was found. A search that was not waited for may hang.
func (f *fence) leaveSurvey() {
	if f.surveyed {
		f.survey.Close()
		return
	}
	_, _ = bounded(f, "survey", teardownLimit, func(context.Context) (struct{}, error) { f.closeSurvey(); return struct{}{}, nil })
}

// takeSurvey waits for the search and adds what it found to the facts. It comes after
// the checks: a directory that is refused was searched for nothing.
func (f *fence) takeSurvey(facts *sandbox.Facts) (err error) {
	f.survey, err = f.searched()
	f.surveyed = true
	if err != nil {
		return err
	}
	f.receipt.Shown = nil // a call under a key is looked at twice
	for _, m := range f.survey.Mounts() {
		facts.Protected = append(facts.Protected, sandbox.Protected{Path: m.Path, Pin: m.Pin, Private: m.Private})
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding sbx's own program: %w", err)
	}
	facts.Protected = sandbox.Guard(facts.Protected, sandbox.Resolve(program), f.paths.Writable)
	facts.Protected = sandbox.Pin(facts.Protected, f.paths.Kept(), f.paths.Writable)
	f.receipt.Shown = nil
	for _, s := range f.paths.Shown {
		f.receipt.Shown = append(f.receipt.Shown, event.Shown{Path: s.Real, Access: string(s.Access), Why: "asked for"})
	}
	for _, p := range append([]string{facts.Repository.Top}, facts.Repository.GitDirs...) {
		if p != "" {
			f.receipt.Shown = append(f.receipt.Shown, event.Shown{Path: p, Access: string(sandbox.ReadOnly), Why: "repository"})
		}
	}
	return nil
}

// guard does what has to be done before the command starts, beside the rest: it
// searches for files by which the command could become root, and writes down what is
// guarded, for a later run to look after this one.
func (f *fence) guard(who identity) error {
	if who.mapping != nil {
		for _, p := range f.paths.Everything() {
			if err := sandbox.CheckPrivilegeBits(p, who.mapping.FileUID); err != nil {
				return err
			}
		}
	}
	if len(f.survey.Trees) == 0 {
		return nil
	}
	return f.run.Keep(artifact.GuardedFile, f.survey.Encode())
}

func (f *fence) guardMeasure() event.Measure {
	whole, dirs := f.survey.Complete()
	m := event.Measure{Name: "files that programs outside obey", Applied: whole, Detail: fmt.Sprintf("read-only; %d directories were searched for them", dirs)}
	if !whole {
		m.Detail += ", which is the bound: what lies deeper is only looked at afterwards"
	}
	return m
}

// ownPath is something of sbx's own that the command must not write.
type ownPath struct{ what, path, why, next, real string }

// ownPaths are looked up once: each costs a look at every directory on its way.
func (f *fence) ownPaths() []ownPath {
	if f.own == nil {
		f.own = f.findOwn()
		for i := range f.own {
			f.own[i].real = sandbox.Resolve(f.own[i].path)
		}
	}
	return f.own
}

func (f *fence) findOwn() []ownPath {
	own := []ownPath{{
		what: "the state directory", path: f.o.StateDir, why: "the command could rewrite its own records",
		next: "start sbx in a project directory, use --ro, or set state_dir in the operator configuration, or XDG_STATE_HOME, to a directory outside",
	}}
	for _, file := range f.o.Config {
		if file != "" {
			own = append(own, ownPath{what: "the configuration", path: file, why: "the command could write what sbx obeys", next: "start sbx in another directory, or use --ro"})
		}
	}
	used := !f.o.NoCache && len(f.derived.Grant.Caches()) > 0
	// A project may have its own unused cache directory, as some CI services set it.
	if caches, ok := CacheDirectory(f.o.Env); ok && (used || !sandbox.Within(sandbox.Resolve(caches), f.paths.Workdir)) {
		own = append(own, ownPath{what: "the cache directory", path: caches, why: "what it kept for other projects could be changed", next: "use --no-cache, or set XDG_CACHE_HOME to a directory outside"})
	}
	return own
}

// checkOwnPaths refuses to let the command write sbx's own files, or read its records.
func (f *fence) checkOwnPaths() error {
	for _, o := range f.ownPaths() {
		if err := f.checkOwn(o); err != nil {
			return err
		}
	}
	return nil
}

func (f *fence) checkOwn(o ownPath) error {
	real := o.real
	if f.paths.Writable(real) {
		for _, s := range f.paths.Shown {
			if s.Access == sandbox.Writable && sandbox.Within(real, s.Real) {
				return &sandbox.Refusal{What: fmt.Sprintf("%s: %s %s lies in it: %s", s, o.what, o.path, o.why), Next: "name a directory that does not hold it"}
			}
		}
		return &sandbox.Refusal{What: fmt.Sprintf("%s %s lies in a directory that would be writable: %s", o.what, o.path, o.why), Next: o.next}
	}
	if sandbox.Within(f.paths.Workdir, real) {
		return &sandbox.Refusal{What: fmt.Sprintf("the working directory %s lies in %s %s", f.paths.Workdir, o.what, o.path), Next: "start sbx in a project directory"}
	}
	for _, s := range f.paths.Shown {
		if s.Access != sandbox.Hidden && sandbox.Within(s.Real, real) {
			return &sandbox.Refusal{What: fmt.Sprintf("%s lies in %s %s", s, o.what, o.path), Next: "leave it out: sbx shows nothing of its own"}
		}
	}
	return nil
}

// checkStateDir refuses a state directory that the command could write.
func (f *fence) checkStateDir() error {
	if f.pathsErr != nil {
		return f.pathsErr
	}
	state := f.findOwn()[0] // what the grant adds is not known yet
	state.real = sandbox.Resolve(state.path)
	return f.checkOwn(state)
}

// hidden are sbx's own directories and files. They are masked where they would show.
func (f *fence) hidden() (out []string) {
	add := func(p string) {
		if slices.Contains(out, p) || !f.mayShow(p) {
			return
		}
		if _, err := os.Lstat(p); err == nil {
			out = append(out, p)
		}
	}
	for _, o := range f.ownPaths() {
		add(o.real)
	}
	if f.target != nil {
		add(sandbox.Resolve(f.target.Path()))
	}
	return out
}

// mayShow reports whether a path lies in something that was asked for, or in the
// repository around.
func (f *fence) mayShow(p string) bool {
	for _, s := range f.receipt.Shown {
		if s.Access != string(sandbox.Hidden) && sandbox.Within(p, s.Path) {
			return true
		}
	}
	return sandbox.Within(p, f.paths.Workdir)
}

// makeOutbox makes the directory that the command finds as $SBX_ARTIFACTS. It is the
// command's own: root gives it away.
func (f *fence) makeOutbox(who identity) error {
	dir, err := f.run.Scratch()
	if err != nil {
		return err
	}
	if who.mapping != nil {
		if err := os.Lchown(dir, int(who.mapping.KUID), int(who.mapping.KGID)); err != nil {
			return fmt.Errorf("giving the artifacts' directory to the command: %w", err)
		}
	}
	if f.outbox, err = filepath.EvalSymlinks(dir); err != nil {
		return fmt.Errorf("finding the artifacts' directory: %w", err)
	}
	return nil
}

// setAside looks for what the command left for programs outside to run or obey.
func (f *fence) setAside() error {
	survey, begun := f.survey, event.Receipt{StartedAt: f.receipt.StartedAt}
	archive := &project.Archive{Open: f.run.Aside, Mask: f.redactor.Bytes}
	result, err := bounded(f, stepSetAside, filesLimit, func(context.Context) (event.Aside, error) {
		return closing(survey, f.id, begun, archive)
	})
	f.receipt.Aside = result
	if result.AsideCount() > 0 && f.o.OnSetAside != nil {
		f.o.OnSetAside(result, filepath.Join(f.run.Dir(), artifact.AsideFile))
	}
	return err
}

// lookAfter does the same for a run whose supervisor died.
func lookAfter(d artifact.Dead) (event.Aside, error) {
	survey, err := project.Decode(d.Guarded)
	if err != nil {
		return event.Aside{}, err
	}
	lost := survey.Reopen()
	defer survey.Close()
	result, err := closing(survey, d.Run, event.Receipt{StartedAt: d.StartedAt}, &project.Archive{Open: d.Aside})
	if err == nil && len(lost) > 0 {
		err = fmt.Errorf("%q is not there any more", lost)
	}
	return result, err
}

func closing(s project.Survey, run string, receipt event.Receipt, archive *project.Archive) (out event.Aside, err error) {
	result, err := s.SetAside(run, receipt.StartedAt, archive)
	out = event.Aside{SetAside: result.Moved, Replaced: result.Replaced}
	for _, r := range result.Renamed {
		out.Renamed = append(out.Renamed, event.Renamed{Path: r.Path, To: r.To})
	}
	for _, c := range result.Cleaned {
		out.Cleaned = append(out.Cleaned, event.Cleaned{Path: c.Path, Settings: c.Settings})
	}
	if closed := archive.Close(); err == nil {
		err = closed
	}
	return event.BoundAside(out), err
}

// collect takes over what the command left in $SBX_ARTIFACTS.
func (f *fence) collect() (err error) {
	f.receipt.Collected, err = bounded(f, stepCollect, filesLimit, func(context.Context) (*event.Collected, error) { return f.run.Collect() })
	return err
}
