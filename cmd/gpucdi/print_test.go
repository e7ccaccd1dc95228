package main

import (
	"strings"
	"testing"
)

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "",
		`NVIDIA "H100" 80GB\HBM3`:       `NVIDIA "H100" 80GB\HBM3`,
		"71 °C, ×4, 显卡":                 "71 °C, ×4, 显卡",
		"a\nb\tc\rd":                    `a\nb\tc\rd`,
		"\x1b[2J":                       `\x1b[2J`,
		"\x1b\"\\":                      `\x1b"\`,
		"\u009b31m":                     `\u009b31m`,
		"\u202egpu":                     `\u202egpu`,
		"\u2028":                        `\u2028`,
		"\xff":                          `\xff`,
		"\x7f\x00":                      `\x7f\x00`,
		strings.Repeat("x", 100) + "\a": strings.Repeat("x", 100) + `\a`,
	} {
		if got := printable(text); got != want {
			t.Errorf("printable(%q) = %q, want %q", text, got, want)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("\x1b[2J\n\xff\u202e\\\"")
	f.Fuzz(func(t *testing.T, text string) {
		once := printable(text)
		if again := printable(once); again != once {
			t.Errorf("printable(%q) = %q is not idempotent: %q", text, once, again)
		}
	})
}

func TestIndented(t *testing.T) {
	if got, want := indented("one\ntwo\x1b\n\nthree", 2), "one\n  two\\x1b\n  \n  three"; got != want {
		t.Errorf("indented = %q, want %q", got, want)
	}
}
