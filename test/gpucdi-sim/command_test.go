package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// root is a node that consists of a driver only.
type root string

func (r root) Root() string { return string(r) }
func (r root) Close() error { return os.RemoveAll(string(r)) }

func install(t *testing.T) root {
	t.Helper()
	dir := t.TempDir()
	if _, err := simdriver.Install(dir, original); err != nil {
		t.Fatal(err)
	}
	return root(dir)
}

// run runs a command line.
func (r root) run(t *testing.T, line string) (string, error) {
	t.Helper()
	var out strings.Builder
	cmd := newCommand(func() (node, error) { return r, nil })
	cmd.SetArgs(strings.Fields(line))
	cmd.SetOut(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// list returns the output of nvidia-smi -L and of gpucdi-sim list.
func (r root) list(t *testing.T) string {
	t.Helper()
	d, err := simdriver.Open(t.Context(), string(r))
	if err != nil {
		t.Fatal(err)
	}
	smi, err := d.Command("nvidia-smi", "-L").CombinedOutput() // fails without driver or GPU
	d.Close()
	out, errList := r.run(t, "list")
	if errList != nil {
		t.Fatal(errList)
	}
	return fmt.Sprintf("%s%v\n%s", smi, err, out)
}

func TestCommands(t *testing.T) {
	r := install(t)
	first := r.list(t)
	g := original.GPUs
	for _, tc := range []struct {
		line, output string
		lists        []string // parts of the list; with a prefix !, parts that it must lack
	}{
		{"xid 3 79", "GPU 3 (" + g[3].UUID + "): XID 79 raised", []string{g[3].UUID + "  ok"}},
		{"lose 0", "GPU 0 (" + g[0].UUID + "): lost", []string{g[0].UUID + "  lost", "!(UUID: " + g[0].UUID}},
		{"return 0", "GPU 0 (" + g[0].UUID + "): returned", []string{g[0].UUID + "  ok", "(UUID: " + g[0].UUID}},
		{"lose " + g[7].UUID, "GPU 7 (" + g[7].UUID + "): lost", nil},
		{"hang 5", "GPU 5 (" + g[5].UUID + "): driver calls hang", nil},
		{"return 5", "GPU 5 (" + g[5].UUID + "): returned", []string{g[5].UUID + "  ok"}},
		{"hang 2", "GPU 2 (" + g[2].UUID + "): driver calls hang", nil},
		{"remove 2", "GPU 2 (" + g[2].UUID + "): removed", []string{g[2].UUID + "  removed", "!(UUID: " + g[2].UUID, "GPU 2: " + g[3].Name + " (UUID: " + g[3].UUID}},
		{"return 2", "GPU 2 (" + g[2].UUID + "): returned", []string{"GPU 2: " + g[2].Name + " (UUID: " + g[2].UUID}},
		{"mig 1 3g.40gb,1c.3g.40gb", "GPU 1 (" + g[1].UUID + "): MIG devices 3g.40gb,1c.3g.40gb", []string{g[1].UUID + "  ok     3g.40gb,1c.3g.40gb\n", "MIG 1c.3g.40gb"}},
		{"mig 1 7g.80gb", "GPU 1 (" + g[1].UUID + "): MIG devices 7g.80gb", []string{g[1].UUID + "  ok     7g.80gb\n"}},
		{"mig 1 off", "GPU 1 (" + g[1].UUID + "): MIG mode off", []string{g[1].UUID + "  ok     -\n"}},
		{"mig 4 3g.40gb", "GPU 4 (" + g[4].UUID + "): MIG devices 3g.40gb", nil},
		{"driver upgrade", "driver 580.95.06, was 580.95.05", []string{"\ndriver 580.95.06\n"}},
		{"driver upgrade 590.44.01", "driver 590.44.01, was 580.95.06", []string{"\ndriver 590.44.01\n"}},
		{"driver unload", "driver unloaded", []string{"driver 590.44.01, unloaded", "!(UUID: "}},
		{"driver load", "driver loaded", []string{"(UUID: " + g[1].UUID}},
		{"driver unload", "driver unloaded", nil},
		{"reset", "driver 580.95.05, 8 GPUs", []string{first}},
	} {
		out, err := r.run(t, tc.line)
		if err != nil || out != tc.output+"\n" {
			t.Errorf("%s printed %q, %v; want %q", tc.line, out, err, tc.output)
		}
		for _, want := range tc.lists {
			absent := strings.HasPrefix(want, "!")
			if listed := r.list(t); strings.Contains(listed, strings.TrimPrefix(want, "!")) == absent {
				t.Errorf("after %s the driver lists\n%swant %s", tc.line, listed, want)
			}
		}
	}
}

// Event sets identify events by their sequence numbers, so an XID after a reset must have a higher one than earlier
// XIDs.
func TestXIDAfterReset(t *testing.T) {
	r := install(t)
	for _, line := range []string{"xid 0 13", "xid 0 31", "reset", "xid 0 48"} {
		if _, err := r.run(t, line); err != nil {
			t.Fatal(err)
		}
	}
	d, err := simdriver.Open(t.Context(), string(r))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if events := d.State().Events; len(events) != 3 || events[2].Seq != 3 || events[2].Data != 48 {
		t.Errorf("events are %+v, want XID 48 as the third", events)
	}
}

func TestErrors(t *testing.T) {
	r := install(t)
	for _, line := range []string{"lose 6", "remove 5"} {
		if _, err := r.run(t, line); err != nil {
			t.Fatal(err)
		}
	}
	for line, want := range map[string]string{
		"xid":                             "usage: gpucdi-sim xid GPU XID",
		"xid 3":                           "usage: gpucdi-sim xid GPU XID",
		"xid 9 79":                        `no GPU "9"; gpucdi-sim list`,
		"xid ../0 79":                     `no GPU "../0"`,
		"xid 3 seventy":                   `invalid XID "seventy"`,
		"xid 3 0":                         `invalid XID "0"`,
		"xid 3 99999999999999999999":      "invalid XID",
		"lose GPU-unknown":                `no GPU "GPU-unknown"`,
		"lose --now 0":                    "unknown flag: --now; usage: gpucdi-sim lose GPU",
		"lose 5":                          "GPU 5 is removed; return it with gpucdi-sim return 5",
		"mig 1 9g.1tb":                    `has no MIG profile "9g.1tb"; its profiles: 1g.10gb, 2g.20gb`,
		"mig 1 3g.40gb,3g.40gb,3g.40gb":   "no free placement for 3g.40gb",
		"mig 1 ,":                         `has no MIG profile ""`,
		"mig 6 3g.40gb":                   "it is lost; return it first",
		"driver upgrade ../../etc/passwd": "invalid driver version",
		"driver downgrade":                "unknown command",
		"explode":                         `unknown command "explode"`,
	} {
		before := r.list(t)
		out, err := r.run(t, line)
		if err == nil || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%s printed %q and returned %v, want an error that contains %q", line, out, err, want)
		}
		usage := strings.Contains(want, "usage") || strings.Contains(want, "invalid") || strings.Contains(want, "no GPU") || strings.Contains(want, "unknown")
		if errors.As(err, new(usageError)) != usage {
			t.Errorf("%s: the error is a usage error: %t", line, !usage)
		}
		if after := r.list(t); after != before {
			t.Errorf("%s failed and changed the driver from\n%sto\n%s", line, before, after)
		}
	}
	if _, err := r.run(t, "driver unload"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.run(t, "xid 3 79"); err == nil || !strings.Contains(err.Error(), "gpucdi-sim driver load") {
		t.Errorf("xid with an unloaded driver: %v", err)
	}
}

func TestConcurrentCommands(t *testing.T) {
	r := install(t)
	var all sync.WaitGroup
	for _, line := range []string{"lose 0", "remove 1", "hang 2", "mig 3 1g.10gb", "lose 4", "driver upgrade", "xid 6 31", "list"} {
		all.Go(func() {
			if _, err := r.run(t, line); err != nil {
				t.Errorf("%s: %v", line, err)
			}
		})
	}
	all.Wait()
	listed, err := r.run(t, "list") // nvidia-smi would hang
	if err != nil {
		t.Fatal(err)
	}
	changes := []string{"driver 580.95.06\n"}
	for i, state := range []string{"lost", "removed", "hanging", "ok       1g.10gb", "lost"} {
		changes = append(changes, original.GPUs[i].UUID+"  "+state)
	}
	for _, want := range changes {
		if !strings.Contains(listed, want) {
			t.Errorf("a change was lost: no %q in\n%s", want, listed)
		}
	}
	d, err := simdriver.Open(t.Context(), string(r))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	isRaised := func(e simdriver.Event) bool { return e.GPU == original.GPUs[6].UUID && e.Data == 31 }
	if events := d.State().Events; !slices.ContainsFunc(events, isRaised) {
		t.Errorf("the XID was lost; events are %+v", events)
	}
}

func TestStop(t *testing.T) {
	r := install(t)
	if out, err := r.run(t, "stop"); err != nil || out != "node removed\n" {
		t.Errorf("stop printed %q, %v", out, err)
	}
	if _, err := r.run(t, "list"); err == nil {
		t.Error("a command succeeds without the node")
	}
	if _, err := findNode(); err == nil || !strings.Contains(err.Error(), "KEEP=1 make demo") {
		t.Errorf("a program outside of a node's directory: %v", err)
	}
	if left, err := filepath.Glob(string(r) + "/*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
