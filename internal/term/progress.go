package term

import "sync"

// eraseLine is: to the first column, erase to the end of the line (ECMA-48 EL).
const eraseLine = "\r\x1b[K"

// maxProgress keeps a progress line on one row of a narrow terminal, in columns.
const maxProgress = 70

// Progress says what is going on, once it has gone on for a second. The line is
// erased by done on a terminal; elsewhere it is written once and stays. Only one
// can be shown at a time; a later one replaces it. done may be called twice.
func (p *Printer) Progress(text string) (done func()) {
	p.look()
	shown := p.styles.faint.Render("sbx: " + truncate(ascii(text), maxProgress) + " ...")
	stop := p.after(progressAfter, func() { p.showProgress(shown) })
	var once sync.Once
	return func() {
		once.Do(func() {
			stop()
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.progress == shown {
				p.clear()
			}
		})
	}
}

// Status shows how a wait stands, at once and in the place of a progress line; a later
// one replaces it, and "" takes it away. Without a terminal each is a line that stays.
func (p *Printer) Status(text string) {
	p.look()
	if text == "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.clear()
		return
	}
	p.showProgress(p.styles.faint.Render("sbx: " + truncate(ascii(text), maxProgress)))
}

func (p *Printer) showProgress(shown string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holding {
		return
	}
	if !p.cursor {
		p.put(shown + "\n")
		return
	}
	p.clear()
	p.progress = shown
	p.put(shown)
}

// clear takes the progress line away. The caller holds the lock.
func (p *Printer) clear() {
	if p.progress != "" {
		p.progress = ""
		p.put(eraseLine)
	}
}
