package sbxtest

import "runtime"

// thread is one operating system thread with namespaces of its own. What it
// starts inherits them, and dies with it where a parent-death signal is set.
type thread struct {
	calls chan call
}

type call struct {
	work func() error
	done chan error
}

func newThread() *thread {
	t := &thread{calls: make(chan call)}
	go func() {
		// Never unlocked: the runtime ends a thread whose namespaces are not its own.
		runtime.LockOSThread()
		for c := range t.calls {
			c.done <- c.work()
		}
	}()
	return t
}

// run does work on the thread and returns its error.
func (t *thread) run(work func() error) error {
	c := call{work: work, done: make(chan error, 1)}
	t.calls <- c
	return <-c.done
}

func (t *thread) stop() { close(t.calls) }
