package event

import (
	"encoding/json"
	"time"
)

// ReceiptSchema is the version of the Receipt's JSON. It changes only when a
// field is renamed or removed; readers ignore fields that they do not know.
const ReceiptSchema = 1

// Receipt says what one pass through the fence did and what was verified
// afterwards. It claims nothing that was not checked. Every list is present in
// JSON, empty when there is nothing to say. docs/receipt.md describes it.
type Receipt struct {
	Schema       int             `json:"schema"`
	Run          string          `json:"run"`
	Version      string          `json:"version"`
	Consumer     string          `json:"consumer,omitempty"`
	Profiles     []string        `json:"profiles"`
	Inputs       []Input         `json:"inputs"`
	Approvals    []Approval      `json:"approvals"` // of profiles that are not built in
	GrantDigest  string          `json:"grant_digest"`
	Position     string          `json:"position"` // enforce, report, legacy
	Command      []string        `json:"command"`  // argv as given
	Workdir      string          `json:"workdir"`
	FloorList    FloorList       `json:"floor_list"`
	Attestation  *Attestation    `json:"attestation,omitempty"` // when one was given
	Rollout      *Rollout        `json:"rollout,omitempty"`     // of the run's name
	Endpoints    []Endpoint      `json:"endpoints"`
	Secrets      []Secret        `json:"secrets"`
	UnixSockets  []UnixSocket    `json:"unix_sockets"`            // of the host, that the command could connect to
	AddressGuard string          `json:"address_guard,omitempty"` // local, delegated
	Applied      []Measure       `json:"applied"`
	Admission    *Admission      `json:"admission,omitempty"` // absent when nothing was admitted
	Class        string          `json:"class,omitempty"`     // agent, browser, lean, task
	Limits       []Limit         `json:"limits"`              // those that are set, held or not
	Cgroups      []string        `json:"cgroups,omitempty"`   // directories that were made for the run
	Steps        []Step          `json:"steps"`
	Revoke       []Check         `json:"revoke"`
	Result       Result          `json:"result"`
	Swept        []Swept         `json:"swept"`
	Shown        []Shown         `json:"shown"`               // what of the host shows besides the working directory
	Collected    *Collected      `json:"collected,omitempty"` // what the command left in $SBX_ARTIFACTS
	Deduped      bool            `json:"deduped"`             // answered from this receipt, which an earlier call under the same key left
	Idempotency  *Idempotency    `json:"idempotency,omitempty"`
	Interrupted  bool            `json:"interrupted"` // written by a later run: the supervisor died
	Directory    string          `json:"directory,omitempty"`
	StartedAt    time.Time       `json:"started_at"`
	FinishedAt   time.Time       `json:"finished_at"`
	Extra        json.RawMessage `json:"extra,omitempty"` // facts of one fence only, never needed to read the rest
	Aside
}

// Shown is a path of the host that shows inside, or is hidden.
type Shown struct {
	Path   string `json:"path"`
	Access string `json:"access"` // read-only, writable, hidden
	Why    string `json:"why"`    // "asked for", "repository"
}

// Collected is what was taken over into files/ of the run's directory.
type Collected struct {
	Files   int       `json:"files"`
	Bytes   int64     `json:"bytes"`
	Skipped []Skipped `json:"skipped"` // the first hundred
	Left    int       `json:"left"`    // how many were skipped besides
}

// Skipped is what was not taken over, and why.
type Skipped struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Idempotency is the key that a call was made under.
type Idempotency struct {
	Key     string `json:"key"`
	Payload string `json:"payload"`          // digest of everything that the call was
	Joined  bool   `json:"joined,omitempty"` // the caller saw the run while it was under way
}

// Input is a vetted value that a profile was given in this run.
type Input struct {
	Profile string `json:"profile"`
	Name    string `json:"name"`
	Value   string `json:"value"`
}

// Approval is what let a custom profile load: who signed which bytes, until when.
type Approval struct {
	Profile     string    `json:"profile"`
	Version     int       `json:"version"`
	Digest      string    `json:"digest"`      // SHA-256 of the file's exact bytes, in hexadecimal
	Signer      string    `json:"signer"`      // principals of the allowed signer
	Fingerprint string    `json:"fingerprint"` // of the signer's key, as in SHA256:...
	Expires     time.Time `json:"expires"`
}

// FloorList says which irreversible commands a command was taken for.
type FloorList struct {
	Version int      `json:"version"`
	Matched []string `json:"matched"` // as in "git push"
}

// What became of an attestation.
const (
	AttestationUnneeded = "unneeded" // the command is not on the floor list: not even read
	AttestationChecked  = "checked"  // and not spent by this run as far as this receipt knows
	AttestationSpent    = "spent"
)

// Attestation is a person's consent to an irreversible command, as far as it was
// checked. What was not needed has no more than Use.
type Attestation struct {
	Use         string    `json:"use"`
	Task        string    `json:"task_id,omitempty"`
	Ordinal     int       `json:"ordinal"`
	ApprovedBy  string    `json:"approved_by,omitempty"`
	Fingerprint string    `json:"fingerprint,omitempty"` // of the signer's key, as in SHA256:...
	ApprovedAt  time.Time `json:"approved_at,omitzero"`
	ExpiresAt   time.Time `json:"expires_at,omitzero"`
	Rules       []string  `json:"rules"`
	Nonce       string    `json:"nonce,omitempty"`
	SingleUse   bool      `json:"single_use"` // the store keeps what was spent
}

// Rollout is how far the grant of a run's name has come to be enforced. The run's own
// position is another one where the caller said so.
type Rollout struct {
	Name       string    `json:"name"`
	Position   string    `json:"position"`
	Since      time.Time `json:"since"`
	By         string    `json:"by"`                        // who set the position
	From       string    `json:"moved_down_from,omitempty"` // the higher position before
	WindowEnds time.Time `json:"window_ends,omitzero"`      // under report, if nothing new comes
	News       int       `json:"new_rows"`                  // of this run, which opened the window anew
	Problem    string    `json:"problem,omitempty"`         // why this run's rows could not be noted
}

// Endpoint is one address that a "registry:" rule stood for in this run.
type Endpoint struct {
	Ecosystem string `json:"ecosystem"`
	URL       string `json:"url"`    // scheme, host, port, base path; never userinfo
	Source    string `json:"source"` // where the address was learnt, as in "/etc/npmrc:3"
}

// Secret is a credential of the grant: its name and what was done with it, never
// the value.
type Secret struct {
	Name       string   `json:"name"`       // the variable that holds it, or the credential's name
	Credential string   `json:"credential"` // "profile/credential"
	Source     string   `json:"source"`     // as in "variable NPM_TOKEN"
	Hosts      []string `json:"hosts"`      // the only ones that it is sent to
	Required   bool     `json:"required"`
	Set        bool     `json:"set"`
	Injected   int64    `json:"injected"` // requests that were sent with it, each time that they were
}

// Admission is how the run came by its slot.
type Admission struct {
	Class string `json:"class"`
	Cap   int    `json:"cap"`
	Slot  int    `json:"slot"`  // of the class, from 0
	Ahead int    `json:"ahead"` // who were in the queue before it when it asked
	// Their difference is the wait; both are taken while no other run can be admitted.
	AskedAt    time.Time `json:"asked_at"`
	AdmittedAt time.Time `json:"admitted_at"`
}

// PoolState is the state of the pool that refused a run.
type PoolState struct {
	Class  string `json:"pool"`
	Busy   int    `json:"busy"` // slots that are held
	Cap    int    `json:"cap"`
	Queued int    `json:"queued"` // runs that wait
}

// UnixSocket is a socket of the host that a profile named.
type UnixSocket struct {
	Profile string `json:"profile"`
	Path    string `json:"path"`
}

// Measure is one wall around the command and whether it stood.
type Measure struct {
	Name    string `json:"name"` // as in "user namespace", "seccomp", "no_new_privs"
	Applied bool   `json:"applied"`
	Detail  string `json:"detail,omitempty"`
}

// Limit is one bound of what the run may use.
type Limit struct {
	Name    string `json:"name"`    // memory, processes, cpu, files, disk, time
	Value   string `json:"value"`   // as in "2GiB"
	Source  string `json:"source"`  // what set it
	Default bool   `json:"default"` // nobody asked for it
	Applied bool   `json:"applied"`
	Whole   bool   `json:"whole"`            // held as it is meant, not for each process alone
	How     string `json:"how,omitempty"`    // as in "cgroup v2"
	Detail  string `json:"detail,omitempty"` // what is bounded, or why nothing is
	Hits    int    `json:"hits"`             // how often it was reached, where the kernel tells
	Hit     string `json:"hit,omitempty"`    // what came of that
}

// Step is one step of the fence, in the order of happening.
type Step struct {
	Name      string        `json:"name"`
	StartedAt time.Time     `json:"started_at"`
	Duration  time.Duration `json:"duration_ns"`
	OK        bool          `json:"ok"`
	Detail    string        `json:"detail,omitempty"`
}

// Check is one thing that the revoke looked at after the command was dead.
type Check struct {
	What     string `json:"what"`
	Verified bool   `json:"verified"`
	Detail   string `json:"detail,omitempty"`
}

// Result is how the command ended, or why it never ran.
type Result struct {
	Exit     int      `json:"exit"`             // what sbx exits with
	Ended    bool     `json:"ended"`            // the command ran and was seen to end, whatever sbx exits with
	Status   int      `json:"status"`           // the command's own status where it ended, whatever sbx exits with
	Signal   string   `json:"signal,omitempty"` // as in "SIGKILL", when a signal ended the command
	TimedOut bool     `json:"timed_out"`
	Killed   bool     `json:"killed"` // by sbx kill
	Refusal  *Refusal `json:"refusal,omitempty"`
	Denials  int      `json:"denials"`          // denied requests, not rows
	Would    int      `json:"would_deny"`       // requests forwarded that enforce would have denied
	Stream   string   `json:"stream,omitempty"` // why the output stream failed; apart from the exit status
}

// Swept is a run of the past whose supervisor died, and what became of it.
type Swept struct {
	Run       string    `json:"run"`
	StartedAt time.Time `json:"started_at,omitzero"`
	Removed   []string  `json:"removed"`         // scratch directories and cgroups
	Freed     string    `json:"freed,omitempty"` // the slot or place in a queue that it still had
	Cgroups   []string  `json:"-"`               // that may be left
	SetAside  []string  `json:"set_aside"`       // the first of what its command had left where programs outside would run it
	Left      int       `json:"set_aside_left"`  // how many there were besides
	Detail    string    `json:"detail,omitempty"`
}

// RefusalKind names a kind of refusal. The list is closed.
type RefusalKind string

// The kinds of refusals.
const (
	RefusedAdmission   RefusalKind = "admission-refused"
	RefusedApproval    RefusalKind = "approval-required"
	RefusedAttestation RefusalKind = "attestation-rejected"
	RefusedBudget      RefusalKind = "budget-stop"
	RefusedRecipe      RefusalKind = "recipe-rejected"
	RefusedTicket      RefusalKind = "ticket-rejected"
	RefusedSandbox     RefusalKind = "sandbox-unavailable"
)

// Refusal is an error: sbx would not, or could not, run the command. No field
// ever holds a secret's value.
type Refusal struct {
	Kind    RefusalKind `json:"_tag"`
	Name    string      `json:"name"`           // the sandbox that it concerns
	Code    string      `json:"code,omitempty"` // as in "unknown-profile"
	Step    string      `json:"step,omitempty"` // the fence's step that failed
	Message string      `json:"message"`
	Next    string      `json:"next,omitempty"` // what the person can do, one sentence
	Cause   error       `json:"-"`
	// PoolState is there for admission-refused; its fields stand beside the others.
	*PoolState
}

// Error returns the message, without the next step.
func (r *Refusal) Error() string {
	if r.Message == "" && r.Cause != nil {
		return r.Cause.Error()
	}
	return r.Message
}

// Unwrap returns the cause, if any.
func (r *Refusal) Unwrap() error { return r.Cause }

// MarshalJSON writes every list, also an empty one, so that readers need not
// tell null from [].
func (r Receipt) MarshalJSON() ([]byte, error) {
	type plain Receipt
	p := plain(r)
	if p.Schema == 0 {
		p.Schema = ReceiptSchema
	}
	p.Profiles = present(p.Profiles)
	p.Inputs = present(p.Inputs)
	p.Approvals = present(p.Approvals)
	p.Command = present(p.Command)
	p.FloorList.Matched = present(p.FloorList.Matched)
	if a := p.Attestation; a != nil {
		full := *a
		full.Rules = present(full.Rules)
		p.Attestation = &full
	}
	p.Endpoints = present(p.Endpoints)
	p.Secrets = append([]Secret{}, p.Secrets...)
	for i := range p.Secrets {
		p.Secrets[i].Hosts = present(p.Secrets[i].Hosts)
	}
	p.UnixSockets = present(p.UnixSockets)
	p.Applied = present(p.Applied)
	p.Limits = present(p.Limits)
	p.Steps = present(p.Steps)
	p.Revoke = present(p.Revoke)
	p.Aside = p.lists()
	p.Shown = present(p.Shown)
	p.Swept = append([]Swept{}, p.Swept...)
	for i := range p.Swept {
		p.Swept[i].Removed, p.Swept[i].SetAside = present(p.Swept[i].Removed), present(p.Swept[i].SetAside)
	}
	return json.Marshal(p)
}

// present returns s, or an empty slice in place of nil.
func present[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
