package floor

import "strings"

// lexer reads a text as a POSIX shell does (Shell Command Language, Token
// Recognition), as far as statements and their words go: quotes are taken off,
// nothing is expanded, a redirection and its target are no words of the statement.
// A statement whose quote or substitution is left open is no statement.
type lexer struct {
	text string
	i    int

	words  []string // of the statement that next found
	inner  []string // texts of substitutions, and targets of redirections
	word   strings.Builder
	inWord bool
	target bool // the word is where a redirection leads
	open   bool // something is not closed
}

// next moves to the next statement with words.
func (l *lexer) next() bool {
	l.words = nil
	for l.i < len(l.text) && !l.open {
		if l.step() {
			l.endStatement()
			if len(l.words) > 0 {
				return true
			}
		}
	}
	if l.open {
		return false
	}
	l.endStatement()
	return len(l.words) > 0
}

func (l *lexer) endStatement() {
	l.endWord()
	l.target = false
}

func (l *lexer) endWord() {
	if !l.inWord {
		return
	}
	word := l.word.String()
	if l.target {
		l.inner = append(l.inner, word)
	} else {
		l.words = append(l.words, word)
	}
	l.word.Reset()
	l.inWord, l.target = false, false
}

// step reads one character or what it opens, and reports the end of a statement.
func (l *lexer) step() (ended bool) {
	c := l.text[l.i]
	switch c {
	case ' ', '\t', '\r':
		l.endWord()
		l.i++
	case '\n', ';', '|', '(', ')':
		l.i++
		return true
	case '&':
		if l.after() == '>' {
			l.redirect()
			return false
		}
		l.i++
		return true
	case '#':
		if l.inWord {
			l.take(1)
			return false
		}
		l.comment()
	case '<', '>':
		if l.after() == '(' {
			l.substitution(2, ')')
			return false
		}
		l.redirect()
	default:
		l.part(c)
	}
	return false
}

// part reads a part of a word.
func (l *lexer) part(c byte) {
	switch c {
	case '\\':
		l.escape()
	case '\'':
		l.single()
	case '"':
		l.double()
	case '`':
		l.substitution(1, '`')
	case '$':
		l.dollar()
	default:
		l.take(1)
	}
}

// after is the byte after the current one, 0 at the end.
func (l *lexer) after() byte {
	if l.i+1 < len(l.text) {
		return l.text[l.i+1]
	}
	return 0
}

// take moves bytes into the word.
func (l *lexer) take(n int) {
	l.word.WriteString(l.text[l.i : l.i+n])
	l.inWord = true
	l.i += n
}

func (l *lexer) comment() {
	end := strings.IndexByte(l.text[l.i:], '\n')
	if end < 0 {
		end = len(l.text) - l.i
	}
	l.i += end
}

func (l *lexer) escape() {
	switch {
	case l.i+1 == len(l.text):
		l.open = true
	case l.text[l.i+1] == '\n':
		l.i += 2 // the line goes on
	default:
		l.i++
		l.take(1)
	}
}

func (l *lexer) single() {
	l.i++
	end := strings.IndexByte(l.text[l.i:], '\'')
	if end < 0 {
		l.open = true
		return
	}
	l.take(end)
	l.i++
}

func (l *lexer) double() {
	l.i++
	l.inWord = true
	for l.i < len(l.text) && !l.open {
		switch c := l.text[l.i]; {
		case c == '"':
			l.i++
			return
		case c == '\\' && strings.IndexByte("$`\"\\\n", l.after()) >= 0 && l.after() != 0:
			l.escape()
		case c == '`':
			l.substitution(1, '`')
		case c == '$' && (l.after() == '(' || l.after() == '{'):
			l.dollar()
		default:
			l.take(1)
		}
	}
	l.open = true
}

func (l *lexer) dollar() {
	switch l.after() {
	case '(':
		l.substitution(2, ')')
	case '{':
		l.substitution(2, '}')
	case '\'':
		l.ansi()
	case '"':
		l.i++ // a text to be translated
	default:
		l.take(1)
	}
}

// ansi reads bash's $'...'. Escapes keep their character.
func (l *lexer) ansi() {
	l.i += 2
	l.inWord = true
	for ; l.i < len(l.text); l.i++ {
		switch c := l.text[l.i]; {
		case c == '\'':
			l.i++
			return
		case c == '\\' && l.after() != 0:
			l.i++
		}
		l.word.WriteByte(l.text[l.i])
	}
	l.open = true
}

// substitution notes what stands before the closing character; the word gets the
// empty pair.
func (l *lexer) substitution(opening int, closing byte) {
	end := closingAt(l.text[l.i+opening:], closing)
	if end < 0 {
		l.open = true
		return
	}
	l.inner = append(l.inner, l.text[l.i+opening:l.i+opening+end])
	l.take(opening)
	l.word.WriteByte(closing)
	l.i += end + 1
}

// closingAt finds the closing character outside of quotes and inner pairs, -1 when
// there is none.
func closingAt(text string, closing byte) int {
	opening := map[byte]byte{')': '(', '}': '{'}[closing]
	depth, quoted := 0, byte(0)
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && quoted != '\'':
			i++
		case quoted != 0:
			if c == quoted {
				quoted = 0
			}
		case c == closing && depth == 0:
			return i
		case c == closing:
			depth--
		case opening != 0 && c == opening:
			depth++
		case closing != '`' && (c == '\'' || c == '"'):
			quoted = c
		}
	}
	return -1
}

// redirect reads an operator; the word after it is a target. A number before it is
// a descriptor, no word.
func (l *lexer) redirect() {
	if strings.Trim(l.word.String(), "0123456789") == "" {
		l.word.Reset()
		l.inWord = false
	}
	l.endWord()
	for l.i < len(l.text) && strings.IndexByte("<>&|", l.text[l.i]) >= 0 {
		l.i++
	}
	l.target = true
}
