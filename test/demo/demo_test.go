package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

// TestReadme runs the command that README begins with.
func TestReadme(t *testing.T) {
	module, err := tools.ModuleDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := docs.Blocks(t.Context(), "README.md", "gpucdi", "sh")
	if err != nil {
		t.Fatal(err)
	}
	before := leftovers(t)
	for _, block := range blocks {
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", block)
		cmd.Dir = filepath.Dir(module)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", block, err, out)
		}
		if uuids := regexp.MustCompile(`GPU \d: .* \(UUID: GPU-[0-9a-f-]{36}\)`).FindAll(out, -1); len(uuids) != 2 {
			t.Errorf("%s shows the GPUs %s, want two:\n%s", block, uuids, out)
		}
	}
	if after := leftovers(t); len(after) > len(before) {
		t.Errorf("it leaves %v behind, of which %v were there", after, before)
	}
}

// leftovers are the state directories of demos, with all that is mounted there.
func leftovers(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("/var/tmp/gpucdi-demo-*")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/var/tmp"); err != nil {
		t.Fatal(err)
	}
	return found
}
