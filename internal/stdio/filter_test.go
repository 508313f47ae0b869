package stdio

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

// through is what a filter lets pass of a text, fed in pieces of n bytes.
func through(text string, n int) string {
	var f filter
	var out []byte
	for len(text) > 0 {
		k := min(n, len(text))
		out = f.feed(out, []byte(text[:k]))
		text = text[k:]
	}
	return string(f.finish(out))
}

// Commands that reach further than the screen, and what is left of them.
var refusedCommands = map[string]string{
	// What a terminal answers by typing.
	"ENQ":                              "a\x05b",
	"device attributes":                "a\x1b[cb",
	"device attributes, zero":          "a\x1b[0cb",
	"secondary device attributes":      "a\x1b[>cb",
	"tertiary device attributes":       "a\x1b[=cb",
	"DECID":                            "a\x1bZb",
	"status":                           "a\x1b[5nb",
	"cursor":                           "a\x1b[6nb",
	"extended cursor":                  "a\x1b[?6nb",
	"printer, keys, locator, checksum": "a\x1b[?15n\x1b[?25n\x1b[?26n\x1b[?53n\x1b[?63;1nb",
	"terminal parameters":              "a\x1b[xb",
	"title":                            "a\x1b[21tb",
	"icon title":                       "a\x1b[20tb",
	"window state, place, size":        "a\x1b[11t\x1b[13t\x1b[14t\x1b[18t\x1b[19tb",
	"setting, DECRQSS":                 "a\x1bP$qm\x1b\\b",
	"termcap":                          "a\x1bP+q544e\x1b\\b",
	"mode":                             "a\x1b[?2026$p\x1b[4$pb",
	"version":                          "a\x1b[>qb",
	"keyboard":                         "a\x1b[?ub",
	"presentation state":               "a\x1b[1$wb",
	"terminal state":                   "a\x1b[1$ub",
	"checksum of an area":              "a\x1b[1;1;1;1;9;9*yb",
	"locator":                          "a\x1b[1;2'z\x1b['|b",
	"secure reset":                     "a\x1b[5+pb",
	"graphics attributes":              "a\x1b[?1;1;0Sb",
	"mouse tracking that waits":        "a\x1b[1;1;1;1;9Tb",
	"palette":                          "a\x1b]4;1;?\ab",
	"colour":                           "a\x1b]11;?\x1b\\b",
	"font":                             "a\x1b]50;?\ab",
	"kitty's pictures":                 "a\x1b_Gi=1,a=q;AAAA\x1b\\b",
	// What reaches the clipboard, files, programs, the keyboard, other windows.
	"clipboard":                      "a\x1b]52;c;aGk=\ab",
	"clipboard, with ST":             "a\x1b]52;c;aGk=\x1b\\b",
	"clipboard, read":                "a\x1b]52;;?\ab",
	"clipboard, odd number":          "a\x1b]052;c;aGk=\ab",
	"clipboard, signed number":       "a\x1b]+52;c;aGk=\ab",
	"clipboard in tmux":              "a\x1bPtmux;\x1b\x1b]52;c;aGk=\a\x1b\\b",
	"clipboard in screen":            "a\x1bP\x1b]52;c;aGk=\a\x1b\\b",
	"clipboard, string in a string":  "a\x1b]2;x\x1b]52;c;aGk=\ab",
	"clipboard behind a broken one":  "a\x1b[?\x1b]52;c;aGk=\ab",
	"clipboard of iTerm2":            "a\x1b]1337;Copy=:aGk=\ab",
	"file transfer of iTerm2":        "a\x1b]1337;File=name=eA==:aGk=\ab",
	"file transfer by ZMODEM":        "a\x18b",
	"command line of an editor":      "a\x1b]633;E;rm -rf ~\ab",
	"program of ConEmu":              "a\x1b]9;6;calc\ab",
	"notification":                   "a\x1b]9;hello\a\x1b]777;notify;a;b\a\x1b]99;;x\ab",
	"working directory":              "a\x1b]7;file://h/etc\ab",
	"link to a program":              "a\x1b]8;;file:///tmp/x.desktop\ab",
	"link to a script":               "a\x1b]8;;javascript:alert(1)\ab",
	"remote control of kitty":        "a\x1bP@kitty-cmd{\"cmd\":\"launch\"}\x1b\\b",
	"user-defined keys":              "a\x1bP1;1|17/6c730a\x1b\\b",
	"printer":                        "a\x1b[5i\x1b[?5i\x1b[ib",
	"keyboard lock":                  "a\x1b[2hb",
	"windows":                        "a\x1b[2t\x1b[8;1;1t\x1b[3;0;0tb",
	"VT52":                           "a\x1b[?2lb",
	"Latin-1":                        "a\x1b%@b",
	"answers in 8 bits":              "a\x1b G\x1b Fb",
	"title of screen":                "a\x1bktitle\x1b\\b",
	"palette of the Linux console":   "a\x1b]P1ffffff\x1b]Rb",
	"saved modes":                    "a\x1b[?1049s\x1b[?1049rb",
	"privacy message, start of text": "a\x1b^x\x1b\\\x1bXx\x1b\\b",
	"unknown":                        "a\x1b[1;2+w\x1b[1!x\x1b[1#z\x1b(\"?\x1b!x\x1b|b",
	"too long":                       "a\x1b[" + strings.Repeat("1;", 200) + "mb",
	"string that is too long":        "a\x1b]2;" + strings.Repeat("x", maxText) + "\ab",
	"parameters after the middle":    "a\x1b[1 2qb",
	"half of one":                    "ab\x1b[3",
	"half of a string":               "ab\x1b]52;c;aGk=",
	"cancelled":                      "a\x1b]52;c;\x18b",
	"C1, alone":                      "a\x9b\x9d\x90\x9ab",
	"C1 in UTF-8":                    "a\u009b\u009d\u0090\u009ab",
	"ESC in a command":               "a\x1b[3\x1b[6nb",
}

func TestCommandsThatReachFurtherAreDropped(t *testing.T) {
	for name, text := range refusedCommands {
		for _, n := range []int{1, 2, 3, 7, len(text)} {
			if got := through(text, n); got != "ab" {
				t.Errorf("%s, in pieces of %d: %q passed", name, n, got)
			}
		}
	}
}

// Of a control character that a terminal does not know as the beginning of a command,
// what follows is text.
func TestTextAfterAStrayIntroducerStays(t *testing.T) {
	for text, want := range map[string]string{
		"\x9b6n":             "6n",
		"\u009b6n":           "6n",
		"\xc2\x1b[6n\x9b6n":  "\xc26n",
		"\xe0\x82\x9b6n":     "\xe06n",
		"\xc0\x9b6n":         "\xc06n",
		"\xf0\x80\x82\x9b6n": "\xf06n",
		"\xed\xa0\x9b6n":     "\xed\xa06n",
	} {
		if got := through(text, 1); got != want {
			t.Errorf("of %q passed %q, want %q", text, got, want)
		}
	}
}

// harmless is what programs draw with.
var harmless = []string{
	"plain text\r\n\ttabs\b\b\v\f\a\x00", "héllo wörld 日本語 🎉 \u00a0\ufeff", "latin-1 \xe9t\xe9 \xff",
	"\x1b[31mred\x1b[0m \x1b[38;2;1;2;3m\x1b[48:2::1:2:3m\x1b[4:3m", "\x1b[2J\x1b[H\x1b[10;20H\x1b[K\x1b[1A\x1b[5;10r",
	"\x1b7\x1b8\x1bM\x1bD\x1b=\x1b>\x1bc", "\x1b(0lqqk\x1b(B\x0e\x0f", "\x1b#8", "\x1b[!p",
	"\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[?1000;1002;1006h\x1b[?1049l\x1b[?25h",
	"\x1b]0;title\a\x1b]2;título\x1b\\", "\x1b]8;id=1;https://up.test/x?a=b\aa link\x1b]8;;\a", "\x1b]4;1;rgb:00/11/22\a\x1b]104\a\x1b]11;#fff\a\x1b]111\a",
	"\x1b]133;A\a$ \x1b]133;B\a", "\x1b]9;4;1;50\a", "\x1b[4 q", "\x1b[>4;2m\x1b[>1u\x1b[<u", "\x1b[22;0t\x1b[23;0t",
	"\x1bP0;0;0q#0;2;0;0;0#0!10~-\n!10~\x1b\\", "\x1b[?2026h\x1b[?2026l", "\x1b[1;1;5;5$z\x1b[65;1;1;2;2$x", "\x1b[3J",
}

func TestWhatProgramsDrawWithPasses(t *testing.T) {
	for _, text := range append(harmless, strings.Join(harmless, "")) {
		for _, n := range []int{1, 2, 3, len(text)} {
			if got := through(text, n); got != text {
				t.Errorf("in pieces of %d, of %q passed %q", n, text, got)
			}
		}
	}
}

// Control characters in the middle of a command are carried out at once, as terminals do.
func TestControlCharactersInACommand(t *testing.T) {
	for text, want := range map[string]string{
		"\x1b[3\r1mx":                  "\r\x1b[31mx",
		"\x1b[3\x051mx":                "\x1b[31mx",
		"\x1b[3\x7f1mx":                "\x1b[31mx",
		"\x1b[3é1m":                    "é1m",
		"\x1b\x1b[31m":                 "\x1b[31m",
		"\x1bPq#0~~\x05~\x1b\\x":       "\x1bPq#0~~\x1b\\x",
		"\x1bPq#0~~\x1b]52;c;x\ay":     "\x1bPq#0~~\x1b\\y",
		"\x1bPq#0~~q\x9cqqq\x1b\\y":    "\x1bPq#0~~q\x1b\\y",
		"\x1bPq#0~~":                   "\x1bPq#0~~\x1b\\",
		"\x1b]2;a\nb\ac":               "c",
		"\x1b]2;a\u009cb\ac":           "c",
		"\x1b]2;a\x9c\x1b]52;c;aGk=\a": "",
	} {
		for _, n := range []int{1, len(text)} {
			if got := through(text, n); got != want {
				t.Errorf("of %q passed %q, want %q", text, got, want)
			}
		}
	}
}

// Text is passed on before what follows it is known.
func TestTextIsNotHeldBack(t *testing.T) {
	var f filter
	for _, piece := range []string{"a prompt> ", "é"[:1], "é"[1:], "x\x1b[1", "myz"} {
		want := strings.TrimSuffix(strings.Replace(piece, "myz", "\x1b[1myz", 1), "\x1b[1")
		if got := string(f.feed(nil, []byte(piece))); got != want {
			t.Errorf("of %q passed %q, want %q", piece, got, want)
		}
	}
}

func TestOnlyWhatWasChangedIsPutBack(t *testing.T) {
	for text, want := range map[string]string{
		"text":                                   "",
		"\x1b[31mred\x1b[m\x1b[1;31mx\x1b[0m":    "",
		"\x1b[31mred":                            "\x1b[m",
		"\x1b[?1049h\x1b[?25l":                   "\x1b[?1049l\x1b[?25h",
		"\x1b[?1049h\x1b[?1049l":                 "",
		"\x1b[?1000;1006h\x1b[?2004h\x1b[?2004l": "\x1b[?1000l\x1b[?1006l",
		"\x1b[?25h\x1b[?7l":                      "\x1b[?7h",
		"\x1b[5;10r":                             "\x1b7\x1b[r\x1b8",
		"\x1b[5;10r\x1b[r":                       "",
		"\x1b[4h\x1b[20h":                        "\x1b[4l\x1b[20l",
		"\x1b(0x":                                "\x1b(B",
		"\x1b)0\x0ex":                            "\x0f\x1b)B",
		"\x1b(0x\x1b(B\x1b[m\x0ex\x0f":           "",
		"\x1b=":                                  "\x1b>",
		"\x1b[>1u":                               "\x1b[<99u\x1b[<99u",
		"\x1b[>4;2m":                             "\x1b[>4m",
		"\x1b[2 q":                               "\x1b[0 q",
		"\x1b]11;#000000\a":                      "\x1b]104\a\x1b]110\a\x1b]111\a\x1b]112\a",
		"\x1b[?1049h\x1b[31m\x1b(0\x1bc":         "",
		"\x1b[?2l\x1b[?1049s":                    "",
		"\x1b[?1004h\x1b[?2031h\x1b[?2048h":      "\x1b[?1004l\x1b[?2031l\x1b[?2048l",
	} {
		var f filter
		f.feed(nil, []byte(text))
		if got := f.changed.undo(); got != want {
			t.Errorf("after %q: %q, want %q", text, got, want)
		}
		var again filter
		if passed := again.feed(nil, []byte(want)); string(passed) != want {
			t.Errorf("of %q, which puts things back, %q would pass", want, passed)
		}
	}
}

func TestQuestionsPassOnlyWhereTheyAreAllowed(t *testing.T) {
	const text = "\x1b[c\x1b[0c\x1b[5n\x1b[6n\x1b[?6n\x1b[?2026$p\x1b[?u"
	var asked string
	f := filter{ask: func(q question) bool { asked += string(rune(q)); return true }}
	if got := string(f.feed(nil, []byte(text))); got != text || asked != "ccnRRyu" {
		t.Errorf("%q passed, asked was %q", got, asked)
	}
	for name, refused := range refusedCommands {
		f := filter{ask: func(question) bool { return true }}
		out := f.feed(nil, []byte(refused))
		if text := string(f.finish(out)); text != "ab" && !strings.Contains("device attributes, zero extended cursor status mode keyboard ESC in a command", name) {
			t.Errorf("%s passed as a question: %q", name, text)
		}
	}
}

func TestAnswersAreFoundAmongKeys(t *testing.T) {
	for keys, want := range map[string]string{
		"abc\x1b[A\x1b[1;5C\x1bOP\x1b[3~\x1b[200~x\x1b[201~": "",
		"\x1b[?62;22c": "c", "\x1b[0n": "n", "\x1b[12;40R": "R", "\x1b[?12;40R": "R", "\x1b[?2026;2$y": "y", "\x1b[?0u": "u",
		"x\x1b[12;40Ry\x1b[?62c": "Rc", "\x1b[97u": "", "\x1b[R": "", "\x1b\x1b[0n": "n", "[0n": "",
	} {
		var a answers
		var got string
		for _, b := range []byte(keys) {
			if q, ok := a.next(b); ok {
				got += string(rune(q))
			}
		}
		if got != want {
			t.Errorf("in %q: %q, want %q", keys, got, want)
		}
	}
}

// seeds are the texts of the tables above.
func seeds(f *testing.F) {
	n := 0
	for _, text := range refusedCommands {
		f.Add([]byte(text), uint8(3))
		n++
	}
	for _, text := range harmless {
		f.Add([]byte(text), uint8(1))
		n++
	}
	if n < 80 {
		f.Fatalf("only %d seeds", n)
	}
}

// FuzzFilter: what passes passes again unchanged; pieces make no difference; text is
// kept byte for byte; no command that was dropped comes together from what is left;
// and what puts the terminal back passes as well.
func FuzzFilter(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, text []byte, piece uint8) {
		whole := through(string(text), max(1, len(text)))
		if pieces := through(string(text), int(piece)+1); pieces != whole {
			t.Fatalf("in pieces %q, as a whole %q", pieces, whole)
		}
		if again := through(whole, max(1, len(whole))); again != whole {
			t.Fatalf("%q passed, of that %q", whole, again)
		}
		if ordinary(text) && whole != string(text) {
			t.Fatalf("of the text %q passed %q", text, whole)
		}
		mustNotHave(t, whole)
		var g filter
		g.feed(nil, text)
		if undo := g.changed.undo(); through(undo, 1) != undo {
			t.Fatalf("%q does not pass", undo)
		}
		if len(g.held) > maxText {
			t.Fatalf("%d bytes are held", len(g.held))
		}
	})
}

// ordinary reports whether a text is UTF-8 without control characters but those of
// lines.
func ordinary(text []byte) bool {
	return utf8.Valid(text) && bytes.IndexFunc(text, func(r rune) bool {
		return r < ' ' && !strings.ContainsRune("\t\r\n\b\a\f\v\x00", r) || r >= 0x80 && r < 0xa0
	}) < 0
}

func mustNotHave(t *testing.T, passed string) {
	t.Helper()
	for _, bad := range []string{"\x05", "\x18", "\x1a", "\x1b]52", "\x1b[6n", "\x1b[c", "\x1b[21t", "\x1bP$q", "\x1b_", "\x1bZ", "\xc2\x9b", "\xc2\x9d"} {
		if strings.Contains(passed, bad) {
			t.Fatalf("%q passed in %q", bad, passed)
		}
	}
	for i := 0; i < len(passed); {
		r, n := utf8.DecodeRuneInString(passed[i:])
		if r == utf8.RuneError && n == 1 && passed[i] >= 0x80 && passed[i] < 0xa0 && !partOfTruncated(passed, i) {
			t.Fatalf("the control character %#x passed in %q", passed[i], passed)
		}
		i += n
	}
}

// partOfTruncated reports whether the byte is the second or third of a character whose
// rest is missing, which a terminal reads as one broken character.
func partOfTruncated(s string, i int) bool {
	for back := 1; back <= 2 && back <= i; back++ {
		if b := s[i-back]; b >= 0xc3 && b <= 0xf4 {
			return true
		}
	}
	return false
}

func BenchmarkFilter(b *testing.B) {
	text := []byte(strings.Repeat("\x1b[32m  ok\x1b[0m  some/package/path  0.123s  (cached)\r\n", 1000))
	b.SetBytes(int64(len(text)))
	var f filter
	var out []byte
	for b.Loop() {
		out = f.feed(out[:0], text)
	}
}
