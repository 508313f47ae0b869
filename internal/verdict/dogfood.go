package verdict

import "fmt"

// Pass is one pass through the fence under an idempotency key.
type Pass struct {
	Ran     bool   `json:"ran"` // it came back with a receipt and was not refused
	Run     string `json:"run"`
	Exit    int    `json:"exit"`
	Output  string `json:"output"` // stdout, without white space around it
	Deduped bool   `json:"deduped"`
	Error   string `json:"error,omitempty"` // why it was refused, or what the command said
	Full    bool   `json:"full,omitempty"`  // the pool was
}

// Rehearsal is what a dogfood run saw: a real clone, asked for twice under one key.
type Rehearsal struct {
	Want   string `json:"want"` // the commit that the clone has to be at; "" for any
	First  Pass   `json:"first"`
	Second Pass   `json:"second"`
	Clone  string `json:"clone"` // commit of the clone as the host finds it; "" for no clone
	Clones int    `json:"clones"`
}

// JudgeDogfood says whether one of the two calls cloned and the other was answered
// from its receipt.
func JudgeDogfood(r Rehearsal) (o Outcome, diagnosis string) {
	switch {
	case r.First.Full || r.Second.Full:
		return Deferred, "the pool was full"
	case !r.First.Ran:
		return Inconclusive, "the first call was refused: " + r.First.Error
	case r.First.Deduped:
		return Failed, "the first call under a new key was answered from a receipt"
	case r.First.Exit != 0:
		return Failed, fmt.Sprintf("the clone ended with status %d: %s", r.First.Exit, r.First.Error)
	case r.Want != "" && (r.First.Output != r.Want || r.Clone != r.Want):
		return Failed, fmt.Sprintf("the clone is at %q (inside) and %q (outside), not at %s", r.First.Output, r.Clone, r.Want)
	case r.Clone == "" || r.Clone != r.First.Output:
		return Failed, fmt.Sprintf("the clone is at %q inside and at %q outside", r.First.Output, r.Clone)
	case !r.Second.Ran:
		return Failed, "the same call under the same key was refused: " + r.Second.Error
	case !r.Second.Deduped || r.Clones != 1:
		return Failed, fmt.Sprintf("the same call under the same key ran again (%d clones)", r.Clones)
	case r.Second.Run != r.First.Run || r.Second.Output != r.First.Output || r.Second.Exit != r.First.Exit:
		return Failed, fmt.Sprintf("the answer from the receipt differs: run %s, status %d, %q", r.Second.Run, r.Second.Exit, r.Second.Output)
	}
	return Passed, "a repository was cloned in a sandbox, and the same call was answered from its receipt"
}
