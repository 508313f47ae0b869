package stdio

import (
	"bytes"
	"slices"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// allowed judges the command in held, and notes what it changes.
func (f *filter) allowed() bool {
	switch kind := f.held[1]; kind {
	case '[':
		c, ok := parseControl(f.held[2:])
		return ok && f.allowedControl(c)
	case ']':
		return f.allowedText(f.held[2:])
	case 'P', 'X', '^', '_', 'k':
		// Pictures are passed on as they come. All others reach further: keys are given
		// new meanings, files read, windows controlled, filters of others passed by.
		return false
	default:
		return f.allowedEscape(f.held[1:])
	}
}

// allowedEscape judges a command of ESC and one or two more characters.
func (f *filter) allowedEscape(rest []byte) bool {
	last := rest[len(rest)-1]
	if len(rest) == 1 {
		switch last {
		case '7', '8', 'D', 'E', 'M', 'N', 'O':
			return true
		case '=', '>':
			f.changed.keypad = last == '='
			return true
		case 'c': // everything is as at the start
			f.changed = changes{}
			return true
		}
		return false
	}
	switch {
	case len(rest) != 2:
		return false
	case bytes.IndexByte([]byte("()*+-./"), rest[0]) >= 0:
		if i := bytes.IndexByte([]byte("()"), rest[0]); i >= 0 {
			f.changed.sets[i] = last != 'B'
		}
		return true
	}
	return rest[0] == '#' && bytes.IndexByte([]byte("34568"), last) >= 0
}

// controlSequence is CSI in parts.
type controlSequence struct {
	prefix byte // ? > < = or 0
	params []byte
	middle string // intermediate characters
	final  byte
}

// parseControl takes apart what follows ESC [.
func parseControl(b []byte) (c controlSequence, ok bool) {
	c.final, b = b[len(b)-1], b[:len(b)-1]
	if len(b) > 0 && b[0] >= '<' && b[0] <= '?' {
		c.prefix, b = b[0], b[1:]
	}
	end := len(b)
	for end > 0 && b[end-1] < '0' {
		end--
	}
	c.params, c.middle = b[:end], string(b[end:])
	for _, p := range c.params {
		if p < '0' || p > ';' {
			return c, false
		}
	}
	return c, true
}

// numbers are the parameters, 0 for one that is left out; nil when one is none.
func (c controlSequence) numbers() (out []int) {
	for p := range bytes.SplitSeq(c.params, []byte(";")) {
		n := 0
		if len(p) > 0 {
			var err error
			if n, err = strconv.Atoi(string(p)); err != nil || n > 99_999 {
				return nil
			}
		}
		out = append(out, n)
	}
	return out
}

func (f *filter) allowedControl(c controlSequence) bool {
	if q, is := questionOf(c); is {
		return f.ask != nil && f.ask(q)
	}
	switch string(c.prefix) + c.middle {
	case "\x00":
		return f.allowedPlain(c)
	case "?":
		return c.final == 'J' || c.final == 'K' || (c.final == 'h' || c.final == 'l') && f.changed.private(c.numbers(), c.final == 'h')
	case ">", "<", "=":
		return f.allowedKeys(c)
	case "\x00 ":
		f.changed.cursor = f.changed.cursor || c.final == 'q'
		return c.final == 'q' || c.final == '@' || c.final == 'A'
	case "\x00!", "\x00\"":
		return c.middle == "!" && c.final == 'p' || c.middle == "\"" && c.final == 'q'
	case "\x00$":
		return bytes.IndexByte([]byte("rtvxz{"), c.final) >= 0
	case "\x00'":
		return c.final == '}' || c.final == '~'
	}
	return false
}

// allowedPlain judges sequences without prefix and intermediate characters.
func (f *filter) allowedPlain(c controlSequence) bool {
	n := c.numbers()
	switch c.final {
	case 'h', 'l':
		return f.changed.ansi(n, c.final == 'h')
	case 'm':
		f.changed.style = len(n) == 0 || slices.Max(n) > 0 // 0 alone is the plain style
		return true
	case 'r':
		f.changed.region = len(c.params) > 0
		return true
	case 't': // the stack of titles; all others move windows or ask
		return len(n) > 0 && (n[0] == 22 || n[0] == 23)
	case 'T': // with more it is the tracking of xterm, which waits for an answer
		return len(n) == 1
	}
	return bytes.IndexByte([]byte("@ABCDEFGHIJKLMPSXZ^`abdefsu"), c.final) >= 0
}

// allowedKeys judges what says how keys are encoded.
func (f *filter) allowedKeys(c controlSequence) bool {
	switch {
	case c.middle != "":
		return false
	case c.final == 'u': // kitty's keyboard protocol
		f.changed.keyboard = true
		return true
	case c.prefix == '>' && c.final == 'm' && len(c.params) > 0 && c.numbers() != nil && c.numbers()[0] == 4:
		f.changed.modified = true
		return true
	}
	return false
}

// question is what a terminal answers by typing.
type question byte

// The questions that many programs cannot do without. What a terminal answers to them
// is a few digits that a command cannot choose.
const (
	askDevice   question = 'c' // primary device attributes
	askStatus   question = 'n'
	askCursor   question = 'R'
	askMode     question = 'y'
	askKeyboard question = 'u'
)

// questionOf knows the questions that may be asked where the command reads the answer.
// All others are not allowed anywhere.
func questionOf(c controlSequence) (q question, is bool) {
	params := string(c.params)
	switch string(c.prefix) + c.middle + string(c.final) {
	case "\x00c":
		return askDevice, params == "" || params == "0"
	case "\x00n":
		if params == "5" {
			return askStatus, true
		}
		return askCursor, params == "6"
	case "?n":
		return askCursor, params == "6"
	case "?$p":
		return askMode, len(c.numbers()) == 1
	case "?u":
		return askKeyboard, params == ""
	}
	return 0, false
}

// allowedText judges an operating system command: titles, colours, links, marks.
func (f *filter) allowedText(body []byte) bool {
	if !printable(body) {
		return false
	}
	number, rest, _ := bytes.Cut(body, []byte(";"))
	n, err := strconv.Atoi(string(number))
	if err != nil || len(number) > 3 || len(number) > 1 && number[0] == '0' {
		return false
	}
	switch n {
	case 0, 1, 2, 133:
		return true
	case 4, 5, 10, 11, 12:
		if bytes.IndexByte(rest, '?') >= 0 {
			return false // asks
		}
		f.changed.colours = true
		return true
	case 104, 105, 110, 111, 112:
		return true
	case 8:
		return harmlessLink(rest)
	case 9:
		return bytes.HasPrefix(rest, []byte("4;")) // progress; the others start programs
	}
	return false
}

// harmlessLink reports whether what follows the parameters of a link leads to the web.
func harmlessLink(rest []byte) bool {
	_, link, ok := bytes.Cut(rest, []byte(";"))
	if !ok {
		return false
	}
	for _, scheme := range []string{"http://", "https://", "mailto:"} {
		if bytes.HasPrefix(link, []byte(scheme)) {
			return true
		}
	}
	return len(link) == 0
}

// printable reports whether a string is UTF-8 without control characters: some
// terminals would see its end, or another command, in them.
func printable(body []byte) bool {
	if !utf8.Valid(body) {
		return false
	}
	return bytes.IndexFunc(body, unicode.IsControl) < 0
}
