package host_test

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/gpucdi/gpucdi/internal/host"
)

func TestOutputKeepsTheBeginning(t *testing.T) {
	var out host.Output
	written, err := io.Copy(&out, iotest.OneByteReader(strings.NewReader("first line\n"+strings.Repeat("x", 1<<20))))
	if err != nil || written != 1<<20+11 {
		t.Errorf("wrote %d bytes, error %v", written, err)
	}
	if kept := out.String(); len(kept) != 16<<10 || !strings.HasPrefix(kept, "first line\nxxx") {
		t.Errorf("kept %d bytes: %.20q", len(kept), kept)
	}
}

func TestPrintable(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"", ""},
		{" NVIDIA H100 80GB HBM3\n", "NVIDIA H100 80GB HBM3"},
		{"Größe 5", "Größe 5"},
		{"\x1b[31mred\x07\x00", "\ufffd[31mred\ufffd\ufffd"},
		{"right\u202eto left", "right\ufffdto left"},
		{"bad \xff byte", "bad \ufffd byte"},
		{"one\r\n\ntwo\n", "one; two"},
		{strings.Repeat("x", 40), strings.Repeat("x", 40)},
		{strings.Repeat("x", 41), strings.Repeat("x", 37) + "…"},
		{strings.Repeat("ö", 21), strings.Repeat("ö", 18) + "…"},
		{strings.Repeat("\x1b", 1<<20), strings.Repeat("\ufffd", 12) + "…"},
		{strings.Repeat("\n", 1<<20), "…"},
	} {
		got := host.Printable(tc.text, 40)
		if got != tc.want || len(got) > 40 || !utf8.ValidString(got) {
			t.Errorf("Printable(%.50q) = %q, want %q", tc.text, got, tc.want)
		}
	}
}
