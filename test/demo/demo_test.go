package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

// Runs the commands in README's section "Try it", and those that the demo prints.
func TestReadme(t *testing.T) {
	module, err := tools.ModuleDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := docs.Blocks(t.Context(), "README.md", "Try it", "sh")
	if err != nil {
		t.Fatal(err)
	}
	before := leftovers(t)
	kept := false
	for _, block := range blocks {
		out := sh(t, filepath.Dir(module), block)
		if uuids := regexp.MustCompile(`GPU \d: .* \(UUID: GPU-[0-9a-f-]{36}\)`).FindAllString(out, -1); len(uuids) != 2 {
			t.Errorf("%s prints the GPUs %q, want two:\n%s", block, uuids, out)
		}
		if _, commands, found := strings.Cut(out, "The node keeps running."); found {
			kept = true
			useKeptNode(t, commands, len(before))
		}
	}
	if !kept {
		t.Error("no command in README keeps the node running")
	}
	if after := leftovers(t); len(after) > len(before) {
		t.Errorf("leftover files: %v, before: %v", after, before)
	}
}

// useKeptNode runs the commands that the demo prints for a kept node: one lists the pods, one removes the node.
func useKeptNode(t *testing.T, output string, leftBefore int) {
	t.Helper()
	commands := regexp.MustCompile(`(?m)^    (\S.*)$`).FindAllStringSubmatch(output, -1)
	if len(commands) != 2 {
		t.Fatalf("the demo prints %q, want commands to list the pods and to remove the node", output)
	}
	if out := sh(t, "", commands[0][1]); !regexp.MustCompile(`demo +1/1 +Running`).MatchString(out) {
		t.Errorf("%s lists no running pod:\n%s", commands[0][1], out)
	}
	sh(t, "", commands[1][1])
	for start := time.Now(); len(leftovers(t)) > leftBefore; time.Sleep(100 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatalf("leftover files after %s: %v", commands[1][1], leftovers(t))
		}
	}
}

func sh(t *testing.T, dir, command string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", command)
	cmd.Dir = dir
	// Not a pipe, since a kept node inherits and holds it open.
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	text, errRead := os.ReadFile(out.Name())
	if err != nil || errRead != nil {
		t.Fatalf("%s: %v %v\n%s", command, err, errRead, text)
	}
	return string(text)
}

// leftovers returns the state directories of demos.
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
