package devicemanager

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// A worker that SIGSTOP has suspended is replaced like one that hangs.
func TestStoppedWorker(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	if err := syscall.Kill(n.worker(t), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	k.awaitGPUs(t, 8, 0)
	k.awaitGPUs(t, 8, 8)
}

// If the node or the pod is frozen for longer than the call timeout, no GPU becomes unhealthy.
func TestFrozenAgent(t *testing.T) {
	t.Parallel()
	n, k := startNode(t, "health: {probeInterval: 1s, quietPeriod: 3s, callTimeout: 5s}")
	worker := n.worker(t)
	send := func(signal syscall.Signal, pids ...int) {
		t.Helper()
		for _, pid := range pids {
			if err := syscall.Kill(pid, signal); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond) // stop or continue one process before the other
		}
	}
	send(syscall.SIGSTOP, worker, n.pid())
	time.Sleep(7 * time.Second) // more than the probe interval of 1 s and the call timeout of 5 s
	send(syscall.SIGCONT, n.pid(), worker)
	for start := time.Now(); time.Since(start) < 3*time.Second; time.Sleep(5 * time.Millisecond) {
		if _, allocatable := k.capacity(); quantity(allocatable) != 8 {
			t.Fatalf("%d GPUs are healthy after the agent was frozen, want 8", quantity(allocatable))
		}
	}
	if now := n.worker(t); now != worker {
		t.Error("the driver worker was replaced")
	}
}

// exitBlocker reads PIDs from stdin and blocks the exit of these processes with ptrace, so that they cannot be killed,
// as if they hung in the kernel. It passes on all signals.
const exitBlocker = `
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
	char line[32];
	fcntl(0, F_SETFL, O_NONBLOCK);
	for (ssize_t n; (n = read(0, line, sizeof line - 1)) != 0; usleep(1000)) {
		if (n > 0) {
			line[n] = 0;
			dprintf(1, "%ld\n", ptrace(PTRACE_SEIZE, atoi(line), 0, PTRACE_O_TRACEEXIT));
		}
		int status, pid;
		while ((pid = waitpid(-1, &status, __WALL | WNOHANG)) > 0)
			if (WIFSTOPPED(status) && status >> 16 != PTRACE_EVENT_EXIT)
				ptrace(PTRACE_CONT, pid, 0, status >> 16 ? 0 : WSTOPSIG(status));
	}
	return 0;
}
`

// startExitBlocker returns a function that makes a process unkillable, and one that lets all such processes exit.
func startExitBlocker(t *testing.T) (block func(pid int), release func()) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "exitblocker")
	cc := exec.Command("cc", "-w", "-x", "c", "-o", program, "-")
	cc.Stdin = strings.NewReader(exitBlocker)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("compiling exitblocker: %v\n%s", err, out)
	}
	cmd := exec.Command(program)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	results := bufio.NewScanner(out)
	block = func(pid int) {
		t.Helper()
		defer killAfterTimeout(cmd)()
		if _, err := in.Write([]byte(strconv.Itoa(pid) + "\n")); err != nil {
			t.Fatal(err)
		}
		if !results.Scan() || results.Text() != "0" {
			t.Fatalf("tracing process %d: %q", pid, results.Text())
		}
	}
	release = func() {
		defer killAfterTimeout(cmd)()
		_ = in.Close()
		_ = cmd.Wait()
	}
	t.Cleanup(release)
	return block, release
}

// A worker that hangs in the kernel cannot be killed. A second worker probes the other GPUs. If it hangs too, all GPUs
// are unhealthy until one of the workers exits.
func TestWorkerHangsInKernel(t *testing.T) {
	t.Parallel()
	n, k := startNode(t)
	block, release := startExitBlocker(t)
	gpus := n.uuids()
	hang := func(gpu int) {
		t.Helper()
		if err := n.driver.InjectFault(simdriver.Fault{GPU: gpus[gpu], Func: "nvmlDeviceGetMemoryInfo", Hang: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	before := n.nvmlCallCounts(t)
	first := n.worker(t)
	block(first)
	hang(5)
	k.awaitGPUs(t, 8, 7)
	n.awaitCalls(t, "nvmlInit_v2", before["nvmlInit_v2"]+1)
	n.awaitCalls(t, "nvmlDeviceRegisterEvents", before["nvmlDeviceRegisterEvents"]+uint64(len(gpus)-1)) // until then the new worker receives no XIDs
	workers := n.workers(t)
	if len(workers) != 2 {
		t.Fatalf("got driver workers %v, want two", workers)
	}
	if err := n.driver.RaiseXID(gpus[2], 13); err != nil {
		t.Fatal(err)
	}
	n.awaitXIDs(t, gpus[2], 13, 1)
	k.awaitGPUs(t, 8, 7)

	for _, pid := range workers {
		if pid != first {
			block(pid)
		}
	}
	hang(1)
	k.awaitGPUs(t, 8, 0)
	n.awaitDevice(t, gpus[0], "driver")
	if now := n.workers(t); len(now) != 2 {
		t.Errorf("got driver workers %v, want two", now)
	}
	if err := n.driver.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	release()
	k.awaitGPUs(t, 8, 8)
	n.worker(t)
}

// The agent shuts down while its worker hangs in the kernel.
func TestShutdownWhileWorkerHangsInKernel(t *testing.T) {
	t.Parallel()
	n, _ := startNode(t)
	block, _ := startExitBlocker(t)
	block(n.worker(t))
	if err := n.driver.InjectFault(simdriver.Fault{GPU: n.uuids()[5], Func: "nvmlDeviceGetMemoryInfo", Hang: time.Hour}); err != nil {
		t.Fatal(err)
	}
	n.awaitDevice(t, n.uuids()[5], "unresponsive")
	n.stopAgent(t)
}
