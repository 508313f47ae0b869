package stdio

import (
	"fmt"
	"slices"
	"strings"
)

// changes is what of the terminal a command has changed and not put back. Only that is
// put back at the end: some terminals move the cursor when they are told to leave a
// screen that they are not on.
type changes struct {
	modes    []int // DEC private modes that are not as at the start
	newline  bool  // ANSI mode 20
	insert   bool  // ANSI mode 4
	keypad   bool
	style    bool
	region   bool
	shifted  bool    // to the second character set
	sets     [2]bool // the first two character sets are not ASCII
	cursor   bool    // its shape
	keyboard bool    // kitty's protocol
	modified bool    // modifyOtherKeys of xterm
	colours  bool
}

// private notes the setting of DEC private modes; false means that one of them is not
// for a command to set.
func (c *changes) private(modes []int, on bool) bool {
	for _, m := range modes {
		if _, known := atStart(m); !known {
			return false
		}
	}
	for _, m := range modes {
		was, _ := atStart(m)
		c.modes = slices.DeleteFunc(c.modes, func(known int) bool { return known == m })
		if on != was {
			c.modes = append(c.modes, m)
		}
	}
	return len(modes) > 0
}

// atStart returns how a DEC private mode is in a terminal that was left sane. Not known,
// and so not allowed, are those that change how the terminal reads (2), its size (3,
// 40), who prints (18, 19), or that cannot be put back without a trace.
func atStart(mode int) (on, known bool) {
	switch mode {
	case 7, 25:
		return true, true
	case 1, 5, 8, 9, 12, 45, 47, 66, 69, 80, 1000, 1002, 1003, 1004, 1005, 1006, 1007, 1015, 1016, 1047, 1048, 1049,
		2004, 2026, 2027, 2031, 2048:
		return mode == 8, true
	}
	return false, false
}

// ansi notes the setting of ANSI modes.
func (c *changes) ansi(modes []int, on bool) bool {
	for _, m := range modes {
		switch m {
		case 4:
			c.insert = on
		case 20:
			c.newline = on
		default:
			return false
		}
	}
	return len(modes) > 0
}

// undo is what puts everything back.
func (c *changes) undo() string {
	var out strings.Builder
	put := func(when bool, sequence string) {
		if when {
			out.WriteString(sequence)
		}
	}
	const pop = "\x1b[<99u" // each screen has a stack of its own
	put(c.keyboard, pop)
	for _, m := range c.modes {
		letter := 'l'
		if on, _ := atStart(m); on {
			letter = 'h'
		}
		fmt.Fprintf(&out, "\x1b[?%d%c", m, letter)
	}
	put(c.keyboard, pop)
	put(c.modified, "\x1b[>4m")
	put(c.region, "\x1b7\x1b[r\x1b8") // to set it moves the cursor
	put(c.insert, "\x1b[4l")
	put(c.newline, "\x1b[20l")
	put(c.keypad, "\x1b>")
	put(c.shifted, "\x0f")
	put(c.sets[0], "\x1b(B")
	put(c.sets[1], "\x1b)B")
	put(c.cursor, "\x1b[0 q")
	put(c.colours, "\x1b]104\a\x1b]110\a\x1b]111\a\x1b]112\a")
	put(c.style, "\x1b[m")
	return out.String()
}
