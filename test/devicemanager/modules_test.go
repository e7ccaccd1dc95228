package devicemanager

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// modprobe is a modprobe of the node's: it notes what it is asked for, and
// loads nvidia-uvm alone. It can see only what is in the node's root.
const modprobe = `
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <unistd.h>
void note(int child) {
	FILE *file = fopen("/modprobe.child", "w");
	fprintf(file, "%d", child);
	fclose(file);
}
int main(int argc, char **argv) {
	FILE *log = fopen("/modprobe.log", "a");
	for (int i = 1; i < argc; i++) fprintf(log, "%s%c", argv[i], i + 1 < argc ? ' ' : '\n');
	fclose(log);
	FIRST
	if (strcmp(argv[argc - 1], "nvidia-uvm")) {
		fprintf(stderr, "modprobe: FATAL: no such module\n");
		return 1;
	}
	FILE *devices = fopen("/proc/devices", "r+");
	char text[4096] = {0};
	fread(text, 1, sizeof text - 1, devices);
	char *gone = strstr(text, "no-longer-");
	if (!gone) return 2;
	memmove(gone, gone + strlen("no-longer-"), strlen(gone));
	rewind(devices);
	fputs(text, devices);
	fflush(devices);
	return ftruncate(fileno(devices), strlen(text));
}
`

// withModprobe gives the node a modprobe that runs some C code first, and unloads nvidia-uvm.
func withModprobe(t *testing.T, n *node, first string) {
	t.Helper()
	cc := exec.Command("cc", "-static", "-w", "-x", "c", "-D", "FIRST="+first, "-o", filepath.Join(n.root, "usr/sbin/modprobe"), "-")
	cc.Stdin = strings.NewReader(modprobe)
	devices := filepath.Join(n.root, "proc/devices")
	if err := os.MkdirAll(filepath.Join(n.root, "usr/sbin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("compiling a modprobe: %v\n%s", err, out)
	}
	text, err := os.ReadFile(devices)
	if err != nil {
		t.Fatal(err)
	}
	unloaded := strings.ReplaceAll(string(text), "nvidia-uvm", "no-longer-nvidia-uvm")
	if err := os.WriteFile(devices, []byte(unloaded), 0o644); err != nil {
		t.Fatal(err)
	}
}

// modprobes is what the node's modprobe was asked for.
func (n *node) modprobes(t *testing.T) string {
	t.Helper()
	said, err := os.ReadFile(filepath.Join(n.root, "modprobe.log"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(said)
}

func TestLoadModules(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	withModprobe(t, n, "")
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 8, 0)
	if asked := n.modprobes(t); asked != "" {
		t.Errorf("without the flag modprobe was asked for %q", asked)
	}
	n.stopAgent(t)

	n.startAgent(t, "--load-modules")
	k.counts(t, 8, 8)
	if asked := n.modprobes(t); asked != "--use-blacklist nvidia-uvm\n" {
		t.Errorf("modprobe was asked for %q", asked)
	}

	// This one cannot be loaded; it is not tried again with each look.
	if err := n.driver.Unload(); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 0)
	time.Sleep(3 * time.Second) // some looks
	if asked := n.modprobes(t); asked != "--use-blacklist nvidia-uvm\n--use-blacklist nvidia\n" {
		t.Errorf("modprobe was asked for %q", asked)
	}
	if err := n.driver.Load(); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 8)
}

// C code that forks a child out of reach of a kill of modprobe's process group. The child keeps
// modprobe's output open.
const (
	child = `pid_t parent = getpid(), child; int up[2]; char b; pipe(up); if (!(child = fork())) { setsid(); `
	// lingers leaves it at that.
	lingers = child + `write(up[1], "", 1); sleep(600); _exit(0); } read(up[0], &b, 1); note(child);`
	// unkillable makes the child stop modprobe at its end, which then is as if it hung in the kernel.
	unkillable = child + `ptrace(PTRACE_SEIZE, parent, 0, PTRACE_O_TRACEEXIT); write(up[1], "", 1); sleep(600); _exit(0); } read(up[0], &b, 1); note(child); sleep(600);`
)

// killChild ends the child at the end of the test.
func (n *node) killChild(t *testing.T) {
	t.Cleanup(func() {
		text, err := os.ReadFile(filepath.Join(n.root, "modprobe.child"))
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(string(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Errorf("modprobe's child: %v", err)
		}
	})
}

// A child of modprobe that keeps its output open delays neither the GPUs nor the end of the agent.
func TestModprobeLeavesAChild(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	withModprobe(t, n, lingers)
	n.killChild(t)
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t, "--load-modules")
	k.counts(t, 8, 8)
	n.stopAgent(t)
}

// The agent ends while modprobe hangs, even if nothing can kill it.
func TestEndDuringModprobe(t *testing.T) {
	for name, code := range map[string]string{"it can be killed": lingers + ` sleep(600);`, "it cannot be killed": unkillable} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, simdriver.H100x8())
			withModprobe(t, n, code)
			n.killChild(t)
			n.startAgent(t, "--load-modules")
			child := filepath.Join(n.root, "modprobe.child")
			for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
				if text, err := os.ReadFile(child); err == nil && len(text) > 0 {
					break
				}
				if time.Since(start) > patience {
					t.Fatal("modprobe was not run")
				}
			}
			n.stopAgent(t)
		})
	}
}
