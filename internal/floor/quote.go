package floor

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text is the command's one text: its words, quoted for a POSIX shell where they
// need it, joined by single spaces. It is what Python's shlex.join writes, so that
// others can make it, and has no blank at either end.
func Text(argv []string) string {
	words := make([]string, len(argv))
	for i, word := range argv {
		words[i] = quote(word)
	}
	return strings.Join(words, " ")
}

// Sum is the SHA-256 of the command's text, in hexadecimal.
func Sum(argv []string) string {
	sum := sha256.Sum256([]byte(Text(argv)))
	return hex.EncodeToString(sum[:])
}

func quote(word string) string {
	if word != "" && strings.IndexFunc(word, unsafe) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'"'"'`) + "'"
}

// unsafe reports whether a character makes a word need quotes.
func unsafe(c rune) bool {
	plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	return !plain && !strings.ContainsRune("_@%+=:,./-", c)
}

// Shown is the command's text for people: no two commands are shown alike. A word
// with a character that does not print, a bidirectional mark among them, stands in
// bash's $'...' with that character as an escape; letters of every script stay. Of
// several blanks all but the first are escaped, so that no word can be laid out to
// look like what is printed around it.
func Shown(argv []string) string { return show(argv, unicode.IsPrint) }

// ASCII is Shown with everything beyond ASCII escaped as well, so that letters
// that look alike, and such as are invisible, differ.
func ASCII(argv []string) string {
	return show(argv, func(c rune) bool { return c >= ' ' && c <= '~' })
}

func show(argv []string, stays func(rune) bool) string {
	words := make([]string, len(argv))
	for i, word := range argv {
		words[i] = showWord(word, stays)
	}
	return strings.Join(words, " ")
}

func showWord(word string, stays func(rune) bool) string {
	odd := func(c rune) bool { return c == utf8.RuneError || !stays(c) }
	if strings.IndexFunc(word, odd) < 0 && !strings.Contains(word, "  ") {
		return quote(word)
	}
	var b strings.Builder
	b.WriteString("$'")
	for i, c := range word {
		_, size := utf8.DecodeRuneInString(word[i:])
		switch {
		case c == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, word[i])
		case c == '\'' || c == '\\':
			b.WriteString(`\` + string(c))
		case !odd(c) && (c != ' ' || i == 0 || word[i-1] != ' '):
			b.WriteRune(c)
		case c < 0x80:
			fmt.Fprintf(&b, `\x%02x`, c)
		case c <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			fmt.Fprintf(&b, `\U%08x`, c)
		}
	}
	b.WriteString("'")
	return b.String()
}
