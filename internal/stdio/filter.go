package stdio

// filter passes on to a terminal what a command writes, but for the commands that
// reach further than the screen: the clipboard, files, programs, the printer, the
// keyboard, and above all whatever makes a terminal type an answer, which would end
// up in the caller's next prompt (ECMA-48, xterm's ctlseqs, console_codes(4)).
//
// Only what is known to be harmless passes, and a command passes whole or not at all,
// in one piece, so that every terminal reads it as the filter did. Text is never held
// back. The terminal is taken to read UTF-8: the control characters U+0080 to U+009F
// are dropped in that form, and bytes of that range that belong to no character.
type filter struct {
	state   state
	held    []byte // the command that is under way, from ESC on
	over    bool   // it cannot be passed on: too long, or malformed
	lead    bool   // 0xc2 came, which begins both a control character and a letter
	need    int    // bytes that are missing of a character
	low     byte   // bounds of the next of them
	high    byte
	ask     func(question) bool // whether a question may reach the terminal; nil: none
	changed changes
}

type state int

const (
	ground state = iota
	escape
	sequence     // after ESC [
	text         // in a string that ends with ESC \
	textEscape   // after ESC in one
	picture      // in a sixel picture, which is passed on as it comes
	pictureStops // after ESC in one
)

// Bounds of one command, in bytes. A longer one is dropped.
const (
	maxControl = 256
	maxText    = 8 << 10
)

// C0 control characters.
const (
	enq = 0x05
	bel = 0x07
	so  = 0x0e
	si  = 0x0f
	can = 0x18
	sub = 0x1a
	esc = 0x1b
	del = 0x7f
)

// stringEnd ends a string, ST of ECMA-48.
const stringEnd = "\x1b\\"

// feed appends to dst what of p may reach the terminal.
func (f *filter) feed(dst, p []byte) []byte {
	for len(p) > 0 {
		if f.state == ground && f.need == 0 && !f.lead {
			n := plain(p)
			dst, p = append(dst, p[:n]...), p[n:]
			if len(p) == 0 {
				break
			}
		}
		dst = f.next(dst, p[0])
		p = p[1:]
	}
	return dst
}

// plain counts the leading bytes that are text, or harmless control characters.
func plain(p []byte) int {
	for i, b := range p {
		if b >= del || b < ' ' && dropped(b) || b == so || b == si {
			return i
		}
	}
	return len(p)
}

// dropped says which of C0 never pass as they are: ENQ makes a terminal type its
// answerback; CAN and SUB end a command, and CAN begins a file transfer.
func dropped(b byte) bool { return b == enq || b == can || b == sub || b == esc }

func (f *filter) next(dst []byte, b byte) []byte {
	switch f.state {
	case ground:
		return f.ground(dst, b)
	case escape, sequence:
		return f.command(dst, b)
	case text:
		return f.text(dst, b)
	case textEscape:
		if b == '\\' {
			return f.end(dst, stringEnd)
		}
		return f.restart(dst, b)
	case picture:
		return f.picture(dst, b)
	case pictureStops:
		dst = append(dst, stringEnd...)
		if f.state = ground; b == '\\' {
			return dst
		}
		return f.restart(dst, b)
	}
	return dst
}

// begin starts a command with its ESC.
func (f *filter) begin() { f.state, f.held, f.over = escape, append(f.held[:0], esc), false }

// restart is for the byte after an ESC that ended something else.
func (f *filter) restart(dst []byte, b byte) []byte {
	f.begin()
	return f.next(dst, b)
}

func (f *filter) ground(dst []byte, b byte) []byte {
	if f.need > 0 && b >= f.low && b <= f.high {
		f.need, f.low, f.high = f.need-1, 0x80, 0xbf
		return append(dst, b)
	}
	f.need = 0
	if f.lead {
		f.lead = false
		if b >= 0x80 && b < 0xa0 {
			return dst
		}
		dst = append(dst, 0xc2)
		if b >= 0xa0 && b < 0xc0 {
			return append(dst, b)
		}
	}
	switch {
	case b == 0xc2:
		f.lead = true
		return dst
	case b == esc:
		f.begin()
		return dst
	case b < 0x80:
		return f.single(dst, b)
	case b < 0xa0:
		return dst
	}
	f.need, f.low, f.high = continuation(b)
	return append(dst, b)
}

// single passes a control character or a letter of ASCII.
func (f *filter) single(dst []byte, b byte) []byte {
	if dropped(b) {
		return dst
	}
	if b == so || b == si {
		f.changed.shifted = b == so
	}
	return append(dst, b)
}

// continuation returns how many bytes follow a first byte in UTF-8, and the bounds of
// the next (RFC 3629, section 4), but for 0xc2.
func continuation(b byte) (need int, low, high byte) {
	switch {
	case b >= 0xc3 && b <= 0xdf:
		return 1, 0x80, 0xbf
	case b == 0xe0:
		return 2, 0xa0, 0xbf
	case b == 0xed:
		return 2, 0x80, 0x9f
	case b >= 0xe1 && b <= 0xef:
		return 2, 0x80, 0xbf
	case b == 0xf0:
		return 3, 0x90, 0xbf
	case b >= 0xf1 && b <= 0xf3:
		return 3, 0x80, 0xbf
	case b == 0xf4:
		return 3, 0x80, 0x8f
	}
	return 0, 0, 0
}

// command takes the next byte of a command that is no string.
func (f *filter) command(dst []byte, b byte) []byte {
	switch {
	case b == esc:
		f.begin()
		return dst
	case b == can || b == sub:
		f.state = ground
		return dst
	case b < ' ':
		return f.single(dst, b) // carried out at once, in the middle of it
	case b == del:
		return dst
	case b > del:
		f.state = ground
		return f.ground(dst, b)
	}
	f.hold(b, maxControl)
	switch {
	case f.state == escape && len(f.held) == 2 && b >= '0':
		return f.introduced(dst, b)
	case f.state == escape && b < '0', f.state == sequence && b < '@':
		return dst
	}
	return f.end(dst, "")
}

func (f *filter) hold(b byte, limit int) {
	if len(f.held) >= limit {
		f.over = true
		return
	}
	f.held = append(f.held, b)
}

// introduced knows what the byte right after ESC begins.
func (f *filter) introduced(dst []byte, b byte) []byte {
	switch b {
	case '[':
		f.state = sequence
	case ']', 'P', 'X', '^', '_', 'k': // OSC, DCS, SOS, PM, APC, and the title of screen(1)
		f.state = text
	default:
		return f.end(dst, "")
	}
	return dst
}

// text takes the next byte of a string.
func (f *filter) text(dst []byte, b byte) []byte {
	kind := f.held[1]
	switch {
	case b == esc:
		f.state = textEscape
		return dst
	case b == can || b == sub:
		f.state = ground
		return dst
	case b == bel && kind == ']':
		return f.end(dst, "\a")
	case b < ' ' || b == del:
		f.over = true
		return dst
	}
	f.hold(b, maxText)
	switch {
	case f.over:
	case kind == ']' && linuxPalette(f.held[2:]):
		f.state = ground
	case kind == 'P' && b == 'q' && isPicture(f.held):
		f.state = picture
		return append(dst, f.held...)
	}
	return dst
}

// linuxPalette knows the two strings of the Linux console that nothing ends:
// ESC ] R and ESC ] P with seven digits.
func linuxPalette(body []byte) bool {
	return body[0] == 'R' || body[0] == 'P' && len(body) == 8
}

// isPicture reports whether the string begins as sixels do: parameters, then q.
func isPicture(held []byte) bool {
	for _, b := range held[2 : len(held)-1] {
		if (b < '0' || b > '9') && b != ';' {
			return false
		}
	}
	return true
}

func (f *filter) picture(dst []byte, b byte) []byte {
	switch {
	case b == esc:
		f.state = pictureStops
		return dst
	case b >= ' ' && b < del, b == '\n', b == '\r':
		return append(dst, b)
	}
	if f.state = text; b == can || b == sub {
		f.state = ground
	}
	f.over = true // the rest of it is dropped
	return append(dst, stringEnd...)
}

// end judges the command that is complete and passes it on with its terminator.
func (f *filter) end(dst []byte, terminator string) []byte {
	f.state = ground
	if f.over || !f.allowed() {
		return dst
	}
	return append(append(dst, f.held...), terminator...)
}

// finish closes what is open. Half a command is dropped.
func (f *filter) finish(dst []byte) []byte {
	if f.state == picture || f.state == pictureStops {
		dst = append(dst, stringEnd...)
	}
	if f.lead {
		dst = append(dst, 0xc2)
	}
	f.state, f.need, f.lead = ground, 0, false
	return dst
}
