package host

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// outputLimit is the number of bytes of a program's output to keep. Error messages and the relevant beginning of a
	// Go stack trace are shorter.
	outputLimit = 16 << 10

	// OutputDelay is the time to wait for the end of a program's output after the program has exited, because a child
	// may keep it open. See exec.Cmd.WaitDelay.
	OutputDelay = time.Second
)

// Output is an io.Writer that keeps the beginning of a program's output and discards the rest. It never blocks the
// program, and its memory is bounded.
type Output struct{ kept []byte }

func (o *Output) Write(p []byte) (int, error) {
	o.kept = append(o.kept, p[:min(len(p), outputLimit-len(o.kept))]...)
	return len(p), nil
}

func (o *Output) String() string { return string(o.kept) }

// Printable returns text as a single line of at most limit bytes that is safe in logs and terminals: lines are joined
// by "; ", other unprintable characters are replaced by "\ufffd", surrounding spaces are removed, and truncated text
// ends in "…".
func Printable(text string, limit int) string {
	const ellipsis = "…"
	whole := len(text) <= limit
	text = text[:min(len(text), limit)]
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return utf8.RuneError
	}, strings.Join(lines, "; "))
	if text = strings.TrimSpace(text); whole && len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:min(len(text), limit-len(ellipsis))], "") + ellipsis
}
