package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestConfigCheck(t *testing.T) {
	const valid, invalid = "mig: {strategy: mixed}\n", "mig: {strategy: both}\n"
	dir := t.TempDir()
	for name, text := range map[string]string{"valid.yaml": valid, "invalid.yaml": invalid} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const problem = `mig.strategy: want none, single or mixed, got "both"`
	for name, tc := range map[string]struct{ file, stdin, out, err string }{
		"file":                     {filepath.Join(dir, "valid.yaml"), invalid, "valid.yaml is valid\n", ""},
		"invalid file":             {filepath.Join(dir, "invalid.yaml"), valid, "", "invalid.yaml: " + problem},
		"standard input":           {"-", valid, "standard input is valid\n", ""},
		"empty standard input":     {"-", "", "standard input is valid\n", ""},
		"invalid standard input":   {"-", invalid, "", "reading config from standard input: " + problem},
		"oversized standard input": {"-", strings.Repeat("#", 1<<20), "", "larger than 131072 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			cmd := newRootCommand()
			cmd.SetArgs([]string{"config", "check", tc.file})
			cmd.SetIn(strings.NewReader(tc.stdin))
			cmd.SetOut(&out)
			err := cmd.ExecuteContext(t.Context())
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.HasSuffix(err.Error(), tc.err)) {
				t.Errorf("got error %v, want %q", err, tc.err)
			}
			if !strings.HasSuffix(out.String(), tc.out) || tc.out == "" && out.Len() > 0 {
				t.Errorf("got output %q, want %q", out.String(), tc.out)
			}
		})
	}
}
