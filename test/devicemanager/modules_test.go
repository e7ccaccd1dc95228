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

// modprobe is the source of a fake modprobe that logs its arguments and can load only nvidia-uvm. It runs in a chroot
// of the node's root.
const modprobe = `
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <unistd.h>
void save(int child) {
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
	char *prefix = strstr(text, "unloaded-");
	if (!prefix) return 2;
	memmove(prefix, prefix + strlen("unloaded-"), strlen(prefix));
	rewind(devices);
	fputs(text, devices);
	fflush(devices);
	return ftruncate(fileno(devices), strlen(text));
}
`

// installModprobe unloads nvidia-uvm and installs the fake modprobe, which runs the C code in first after it has logged
// its arguments.
func installModprobe(t *testing.T, n *node, first string) {
	t.Helper()
	cc := exec.Command("cc", "-static", "-w", "-x", "c", "-D", "FIRST="+first, "-o", filepath.Join(n.root, "usr/sbin/modprobe"), "-")
	cc.Stdin = strings.NewReader(modprobe)
	devices := filepath.Join(n.root, "proc/devices")
	if err := os.MkdirAll(filepath.Join(n.root, "usr/sbin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("compiling modprobe: %v\n%s", err, out)
	}
	text, err := os.ReadFile(devices)
	if err != nil {
		t.Fatal(err)
	}
	unloaded := strings.ReplaceAll(string(text), "nvidia-uvm", "unloaded-nvidia-uvm")
	if err := os.WriteFile(devices, []byte(unloaded), 0o644); err != nil {
		t.Fatal(err)
	}
}

// modprobeLog returns the arguments of all modprobe calls, one call per line.
func (n *node) modprobeLog(t *testing.T) string {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(n.root, "modprobe.log"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(log)
}

func TestLoadModules(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	installModprobe(t, n, "")
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 0)
	if calls := n.modprobeLog(t); calls != "" {
		t.Errorf("without --load-modules: got modprobe calls %q", calls)
	}
	n.stopAgent(t)

	n.startAgent(t, "--load-modules")
	k.awaitGPUs(t, 8, 8)
	if calls := n.modprobeLog(t); calls != "--use-blacklist nvidia-uvm\n" {
		t.Errorf("got modprobe calls %q", calls)
	}

	// A module that cannot be loaded is not retried with each probe.
	if err := n.driver.Unload(); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 0)
	time.Sleep(3 * time.Second) // several probes
	if calls := n.modprobeLog(t); calls != "--use-blacklist nvidia-uvm\n--use-blacklist nvidia\n" {
		t.Errorf("got modprobe calls %q", calls)
	}
	if err := n.driver.Load(); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 8)
}

// C code that forks a child in a new session. The child keeps modprobe's output open.
const (
	child = `pid_t parent = getpid(), child; int up[2]; char b; pipe(up); if (!(child = fork())) { setsid(); `
	// lingers makes the child sleep.
	lingers = child + `write(up[1], "", 1); sleep(600); _exit(0); } read(up[0], &b, 1); save(child);`
	// unkillable makes the child stop modprobe on exit with ptrace, as if modprobe hung in the kernel.
	unkillable = child + `ptrace(PTRACE_SEIZE, parent, 0, PTRACE_O_TRACEEXIT); write(up[1], "", 1); sleep(600); _exit(0); } read(up[0], &b, 1); save(child); sleep(600);`
)

// killChild kills modprobe's child at the end of the test.
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

// A child of modprobe that keeps its output open delays neither the GPUs nor the shutdown of the agent.
func TestModprobeWithLingeringChild(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	installModprobe(t, n, lingers)
	n.killChild(t)
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t, "--load-modules")
	k.awaitGPUs(t, 8, 8)
	n.stopAgent(t)
}

// The agent shuts down while modprobe hangs, even if modprobe cannot be killed.
func TestShutdownDuringModprobe(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{"killable": lingers + ` sleep(600);`, "unkillable": unkillable} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, simdriver.H100x8())
			installModprobe(t, n, code)
			n.killChild(t)
			n.startAgent(t, "--load-modules")
			child := filepath.Join(n.root, "modprobe.child")
			for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
				if text, err := os.ReadFile(child); err == nil && len(text) > 0 {
					break
				}
				if time.Since(start) > timeout {
					t.Fatal("modprobe did not run")
				}
			}
			n.stopAgent(t)
		})
	}
}
