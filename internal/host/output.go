package host

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// outputLimit is how many bytes of a program's output are kept. An error message or the
	// beginning of a Go stack trace fits.
	outputLimit = 16 << 10

	// OutputDelay is how long the output of a program is read after the program has exited: a child
	// that inherited it may keep it open. See exec.Cmd.WaitDelay.
	OutputDelay = time.Second
)

// Output is an io.Writer that keeps the beginning of a program's output and discards the rest, so
// that the program is never blocked and memory is bounded.
type Output struct{ kept []byte }

func (o *Output) Write(p []byte) (int, error) {
	o.kept = append(o.kept, p[:min(len(p), outputLimit-len(o.kept))]...)
	return len(p), nil
}

func (o *Output) String() string { return string(o.kept) }

// Printable returns text as one line of at most limit bytes that is safe in logs and terminals:
// lines are joined by "; ", every other unprintable character is replaced by "\ufffd", and "…" ends
// a text that is cut.
func Printable(text string, limit int) string {
	const cut = "…"
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
	return strings.ToValidUTF8(text[:min(len(text), limit-len(cut))], "") + cut
}
