package artifact

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fractalboxdev/sbx/internal/egress"
	"github.com/fractalboxdev/sbx/internal/event"
	"github.com/fractalboxdev/sbx/internal/report"
	"github.com/fractalboxdev/sbx/internal/secret"
)

// The files of a run's directory.
const (
	ReceiptFile  = "receipt.json"
	StartedFile  = "started.json" // what was known at the start: the entry of active/, after Finish
	DenialsFile  = "denials.jsonl"
	RequestsFile = "requests.jsonl"
	OutputFile   = "output.log"
	GuardedFile  = "guarded.txt"   // what was guarded in the project: read by the sweep
	AsideFile    = "set-aside.tar" // what the command had put in guarded places
	FilesDir     = "files"         // what the command left in its outbox
	ReplayFile   = "replay.log"    // the same with its streams told apart; only where a later call may ask for it
)

// Default bounds of one run.
const (
	DefaultMaxRows   = 1_000_000
	DefaultMaxOutput = 1 << 30 // bytes
)

// ErrFinished is a record that came after the receipt.
var ErrFinished = errors.New("the run's records are closed")

// BoundError says that a bound of the run is reached. Nothing was written.
type BoundError struct{ What string }

func (e *BoundError) Error() string { return e.What }

// Code returns the reason code that denials of this kind carry.
func (e *BoundError) Code() string { return string(egress.CodeBoundRows) }

// Options describe one run's records. Zero bounds mean the defaults.
type Options struct {
	StateDir  string // absolute
	RunID     string // see NewID
	Started   event.Receipt
	MaxRows   int
	MaxOutput int64         // bytes
	Grace     time.Duration // between the polite signal and SIGKILL, for whoever asks the run to end
	Replay    bool          // keep the output for a later call, too
	// OnDenial is called once for each new denial row, after it is on disk and
	// outside every lock, on the goroutine of the request; it must not block.
	OnDenial func(event.Denial)
	// Redact masks the secrets of the run in everything that is written; nil: none.
	Redact *secret.Redactor
}

// Run is the directory of a run that is under way. Its methods are safe for
// concurrent use.
type Run struct {
	id    string
	dir   string
	opt   Options
	state *os.Root
	root  *os.Root
	lock  *os.File

	mu       sync.Mutex
	fold     report.Fold
	buf      bytes.Buffer
	enc      *json.Encoder
	requests appendFile
	denials  appendFile
	rows     int
	broken   error // the first record that could not be written and has no caller to tell
	finished bool

	out    output
	replay *replayLog // nil without Options.Replay
}

// Open enters the run into the state directory and opens its records. The
// returned run holds a lock until Close; its descriptors are close-on-exec,
// and no process may inherit them.
func Open(opt Options) (*Run, error) {
	if !ValidID(opt.RunID) {
		return nil, fmt.Errorf("opening run %q: not a run id", opt.RunID)
	}
	if opt.MaxRows == 0 {
		opt.MaxRows = DefaultMaxRows
	}
	if opt.MaxOutput == 0 {
		opt.MaxOutput = DefaultMaxOutput
	}
	state, err := openState(opt.StateDir, true)
	if err != nil {
		return nil, err
	}
	r := &Run{id: opt.RunID, dir: filepath.Join(opt.StateDir, runsDir, opt.RunID), opt: opt, state: state}
	if err := r.open(); err != nil {
		r.Close()
		return nil, fmt.Errorf("opening run %s: %w", r.id, err)
	}
	return r, nil
}

func (r *Run) open() error {
	r.enc = json.NewEncoder(&r.buf)
	r.enc.SetEscapeHTML(false)
	if err := withStateLock(r.state, unix.LOCK_SH, r.enter); err != nil {
		return err
	}
	name := filepath.Join(runsDir, r.id)
	if err := r.state.Mkdir(name, 0o700); err != nil {
		return err
	}
	var err error
	if r.root, err = r.state.OpenRoot(name); err != nil {
		return err
	}
	if r.requests.File, err = create(r.root, RequestsFile); err != nil {
		return err
	}
	if r.denials.File, err = create(r.root, DenialsFile); err != nil {
		return err
	}
	r.out.limit = r.opt.MaxOutput
	r.out.masked = r.opt.Redact.Writer(appender{&r.out})
	if r.out.file, err = create(r.root, OutputFile); err != nil || !r.opt.Replay {
		return err
	}
	r.replay, err = r.openReplay()
	return err
}

// started is the part of a receipt that is known at the start. It is a type of its own
// since preparing the encoder of the whole receipt takes a millisecond.
type started struct {
	Schema      int       `json:"schema"`
	Run         string    `json:"run"`
	Version     string    `json:"version"`
	Consumer    string    `json:"consumer,omitempty"`
	Position    string    `json:"position"`
	Profiles    []string  `json:"profiles"`
	GrantDigest string    `json:"grant_digest"`
	Command     []string  `json:"command"`
	Workdir     string    `json:"workdir"`
	StartedAt   time.Time `json:"started_at"`
	Directory   string    `json:"directory"`
	Cgroups     []string  `json:"cgroups,omitempty"`
	Supervisor
}

// enter makes the file by which a sweep knows the run and locks it.
func (r *Run) enter() error {
	s := r.opt.Started
	text, err := json.Marshal(started{
		Schema: event.ReceiptSchema, Run: r.id, Version: s.Version, Consumer: s.Consumer, Position: s.Position, Profiles: s.Profiles,
		GrantDigest: s.GrantDigest, Command: s.Command, Workdir: s.Workdir, StartedAt: s.StartedAt, Directory: r.dir, Cgroups: s.Cgroups,
		Supervisor: supervisor(r.opt.Grace),
	})
	if err != nil {
		return fmt.Errorf("encoding what is known at the start: %w", err)
	}
	if r.lock, err = create(r.state, filepath.Join(activeDir, r.id)); err != nil {
		return err
	}
	if err := flock(r.lock, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("locking the run: %w", err)
	}
	_, err = r.lock.Write(r.opt.Redact.JSON(text))
	return err
}

func create(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
}

// ID returns the run's id.
func (r *Run) ID() string { return r.id }

// Dir returns the absolute path of the run's directory.
func (r *Run) Dir() string { return r.dir }

// Scratch makes a private directory for the run's working files and returns its
// absolute path. Finish removes it, or the next sweep.
func (r *Run) Scratch() (string, error) {
	name := filepath.Join(scratchDir, r.id)
	if err := r.state.Mkdir(name, 0o700); err != nil {
		return "", fmt.Errorf("making the scratch directory of run %s: %w", r.id, err)
	}
	return filepath.Join(r.opt.StateDir, name), nil
}

// Record appends the request to requests.jsonl, cleaned, with one write, and
// folds it into the denials. When it returns an error the request must be
// refused: a *BoundError past the bound of rows, else the failure of the disk.
func (r *Run) Record(req event.Request) error {
	req = r.redacted(report.Clean(req))
	req.Run = r.id
	r.mu.Lock()
	row, isNew, err := r.record(req)
	r.mu.Unlock()
	if isNew && r.opt.OnDenial != nil {
		r.opt.OnDenial(row)
	}
	return err
}

// redacted masks secrets in what the sandbox or an upstream chose of a record.
func (r *Run) redacted(req event.Request) event.Request {
	for _, s := range []*string{&req.Host, &req.Method, &req.Path, &req.Reason, &req.RedirectedFrom, &req.Process} {
		*s = r.opt.Redact.Text(*s)
	}
	req.Authorities = r.opt.Redact.Texts(req.Authorities)
	return req
}

func (r *Run) record(req event.Request) (event.Denial, bool, error) {
	if r.finished {
		return event.Denial{}, false, ErrFinished
	}
	err := r.appendRow(req)
	if err != nil {
		req = refused(req, err)
	}
	row, isNew := r.fold.Add(req)
	if !isNew {
		return row, false, err
	}
	return row, true, errors.Join(err, r.append(&r.denials, row))
}

func (r *Run) appendRow(req event.Request) error {
	if r.rows >= r.opt.MaxRows {
		return &BoundError{fmt.Sprintf("the run has recorded %d requests, its bound", r.opt.MaxRows)}
	}
	if err := r.append(&r.requests, req); err != nil {
		return err
	}
	r.rows++
	return nil
}

// refused turns a request that could not be recorded into the denial that the
// client is about to see. It reaches the report, though not requests.jsonl.
func refused(req event.Request, err error) event.Request {
	req.Verdict, req.WouldDeny = "deny", false
	req.Code, req.Reason = string(egress.CodeRecordFailed), "the request could not be recorded"
	if bound, ok := errors.AsType[*BoundError](err); ok {
		req.Code, req.Reason = bound.Code(), bound.What
	}
	return req
}

// Complete appends what became of an allowed request. A failure is returned by Finish.
func (r *Run) Complete(c event.Completion) {
	c.Run, c.Event = r.id, "completed"
	c.Error = report.Text(c.Error, report.MaxText)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.finished {
		return
	}
	if err := r.append(&r.requests, c); err != nil && r.broken == nil {
		r.broken = fmt.Errorf("recording a completion: %w", err)
	}
}

// append writes v as one line with one write.
func (r *Run) append(f *appendFile, v any) error {
	r.buf.Reset()
	if err := r.enc.Encode(v); err != nil {
		return fmt.Errorf("encoding a record: %w", err)
	}
	return f.write(r.opt.Redact.JSON(r.buf.Bytes()))
}

// Denials returns the rows so far.
func (r *Run) Denials() []event.Denial {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fold.Denials()
}

// Denied returns how many requests were denied so far.
func (r *Run) Denied() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fold.Total()
}

// WouldDeny returns how many requests were forwarded so far that enforce would
// have denied.
func (r *Run) WouldDeny() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fold.WouldDeny()
}

// Output returns the writer of output.log. Past the bound it writes a last line
// that says so; what follows is dropped.
func (r *Run) Output() io.Writer { return &r.out }

// Stream returns the writer of what the command writes to its stdout (1) or stderr (2):
// output.log, and where it is kept, the replay.
func (r *Run) Stream(fd int) io.Writer {
	if r.replay == nil {
		return &r.out
	}
	return io.MultiWriter(r.replay.stream(fd), &r.out)
}

// appendFile is a file of whole lines.
type appendFile struct {
	*os.File
	size int64
}

// write appends the line, or leaves the file as it was: half a line would
// swallow the next one.
func (f *appendFile) write(line []byte) error {
	n, err := f.Write(line)
	if err == nil {
		f.size += int64(n)
		return nil
	}
	if n > 0 {
		if cut := f.Truncate(f.size); cut != nil {
			return fmt.Errorf("appending to %s: %w; cutting the half line: %w", f.Name(), err, cut)
		}
	}
	return fmt.Errorf("appending to %s: %w", f.Name(), err)
}
