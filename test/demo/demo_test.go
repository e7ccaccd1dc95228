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

// TestReadme runs the commands that README begins with, and those that they
// tell people to go on with.
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
	kept := false
	for _, block := range blocks {
		out := sh(t, filepath.Dir(module), block)
		if uuids := regexp.MustCompile(`GPU \d: .* \(UUID: GPU-[0-9a-f-]{36}\)`).FindAllString(out, -1); len(uuids) != 2 {
			t.Errorf("%s shows the GPUs %s, want two:\n%s", block, uuids, out)
		}
		if _, farewell, stays := strings.Cut(out, "The node stays."); stays {
			kept = true
			goOn(t, farewell, len(before))
		}
	}
	if !kept {
		t.Error("no command of README leaves the node running")
	}
	if after := leftovers(t); len(after) > len(before) {
		t.Errorf("%v is left behind, of which %v was there", after, before)
	}
}

// goOn runs what a demo that stays tells people: a look at the pods, and its end.
func goOn(t *testing.T, farewell string, leftBefore int) {
	t.Helper()
	commands := regexp.MustCompile(`(?m)^    (\S.*)$`).FindAllStringSubmatch(farewell, -1)
	if len(commands) != 2 {
		t.Fatalf("the demo tells %q, want a look at the pods and its end", farewell)
	}
	if out := sh(t, "", commands[0][1]); !regexp.MustCompile(`demo +1/1 +Running`).MatchString(out) {
		t.Errorf("%s shows no running pod:\n%s", commands[0][1], out)
	}
	sh(t, "", commands[1][1])
	for start := time.Now(); len(leftovers(t)) > leftBefore; time.Sleep(100 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatalf("after %s there is still %v", commands[1][1], leftovers(t))
		}
	}
}

func sh(t *testing.T, dir, command string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", command)
	cmd.Dir = dir
	// A file and not a pipe: what a demo leaves running holds its output open.
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	said, errRead := os.ReadFile(out.Name())
	if err != nil || errRead != nil {
		t.Fatalf("%s: %v %v\n%s", command, err, errRead, said)
	}
	return string(said)
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
