package docs

import (
	"slices"
	"testing"
)

func TestParseSteps(t *testing.T) {
	got := parseSteps("# Tour\n    not output\n```sh\necho a\n```\n\n    a\n\nText\n\n```console\nrm -r /\n```\n```sh\ntrue\n  indented\n```\n    x\n      y\n")
	want := []Step{{"echo a\n", "a\n"}, {"true\n  indented\n", "x\n  y\n"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCheckOutput(t *testing.T) {
	const output = "NODE   GPUS\nbox    8\nother  0\nbox    9\n"
	for _, tc := range []struct {
		want    string
		matches bool
	}{
		{"", true},
		{"NODE GPUS\nbox 8\n", true},
		{"box  …\nother  0\n", true},
		{"NODE   GPUS\n…\nbox    9\n", true},
		{"box    9\nother  0\n", false},
		{"box\n", false},
		{"box    8\nbox    8\n", false},
		{"b.x    8\n", false},
		{"…\n…\n…\n…\n…\n…\n", false},
	} {
		if err := CheckOutput(output, tc.want); (err == nil) != tc.matches {
			t.Errorf("%q: %v, want a match: %t", tc.want, err, tc.matches)
		}
	}
}
