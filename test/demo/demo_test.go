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

// TestReadme runs the commands in README's section "Try it", in docs/tour.md, and in the demo's output for a kept node.
func TestReadme(t *testing.T) {
	module, err := tools.ModuleDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := docs.Blocks(t.Context(), "README.md", "Try it", "sh")
	if err != nil {
		t.Fatal(err)
	}
	checkout := filepath.Dir(module)
	before := leftovers(t)
	kept := false
	for _, block := range blocks {
		out := sh(t, checkout, block)
		if uuids := regexp.MustCompile(`GPU \d: .* \(UUID: GPU-[0-9a-f-]{36}\)`).FindAllString(out, -1); len(uuids) != 2 {
			t.Errorf("%s prints the GPUs %q, want two:\n%s", block, uuids, out)
		}
		if _, commands, found := strings.Cut(out, "The node keeps running."); found {
			kept = true
			useKeptNode(t, checkout, commands)
		}
		if after := leftovers(t); len(after) > len(before) {
			t.Errorf("leftover files after %s: %v, before: %v", block, after, before)
		}
	}
	if !kept {
		t.Error("no command in README keeps the node running")
	}
}

// useKeptNode runs the commands of the tour, and then the commands that the demo printed for a kept node. The last
// command, which is the same in both, removes the node.
func useKeptNode(t *testing.T, checkout, output string) {
	t.Helper()
	tour, err := docs.Steps(t.Context(), "docs/tour.md")
	if err != nil {
		t.Fatal(err)
	}
	last := len(tour) - 1
	t.Cleanup(func() { // after a failure
		if d, err := os.Readlink(filepath.Join(checkout, "bin/demo")); err == nil && exists(d) {
			_ = exec.Command(filepath.Join(d, "gpucdi-sim"), "stop").Run()
		}
	})
	export := tour[0].Command
	for _, step := range tour[1:last] {
		start := time.Now()
		out := sh(t, checkout, export+step.Command)
		t.Logf("%.1f s\n%s\n%s", time.Since(start).Seconds(), step.Command, out)
		if err := docs.CheckOutput(out, step.Output); err != nil {
			t.Errorf("%v: expected\n%sgot\n%s", err, step.Output, out)
		}
	}

	var commands []string
	for _, match := range regexp.MustCompile(`(?m)^    (\S.*)$`).FindAllStringSubmatch(output, -1) {
		commands = append(commands, match[1])
	}
	all := strings.Join(commands[:len(commands)-1], "\n")
	for _, want := range []string{"kubectl ", "helm ", "gpucdi-sim xid 3 79 ", "gpucdi-sim lose 0 ", "gpucdi-sim return 0 ",
		"gpucdi-sim mig 1 3g.40gb,3g.40gb ", "gpucdi-sim driver upgrade "} {
		if !strings.Contains(all, "\n"+want) {
			t.Errorf("the demo prints no command %s:\n%s", want, all)
		}
	}
	printed := sh(t, "/", all)
	for _, want := range []string{`gpucdi-\S+ +1/1 +Running`, `NAME\s+NAMESPACE\s+REVISION`, "XID 79 raised", "Usage:\n  gpucdi-sim"} {
		if !regexp.MustCompile(want).MatchString(printed) {
			t.Errorf("the commands that the demo prints do not print %s:\n%s", want, printed)
		}
	}
	remove := commands[len(commands)-1]
	if tour := strings.TrimSpace(tour[last].Command); tour != remove {
		t.Errorf("the last command of the tour is %s, the last command of the demo is %s", tour, remove)
	}
	if out := sh(t, "/", commands[0]+"\n"+remove); out != "node removed\n" {
		t.Errorf("%s prints %s", remove, out)
	}
}

func sh(t *testing.T, dir, command string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", command)
	cmd.Dir = dir
	// The output is a file: a kept node inherits it, and with a pipe, Run would wait until the node closes the pipe.
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
	// Glob returns no error if the directory is missing.
	if _, err := os.Stat("/var/tmp"); err != nil {
		t.Fatal(err)
	}
	return found
}
