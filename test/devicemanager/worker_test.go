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

// A worker that is stopped is as one that hangs: it is replaced.
func TestStoppedWorker(t *testing.T) {
	n, k := both(t)
	if err := syscall.Kill(n.worker(t), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	k.counts(t, 8, 0)
	k.counts(t, 8, 8)
}

// A node or pod that is frozen for longer than a call may take has no unhealthy GPU when it goes on.
func TestFrozenAgent(t *testing.T) {
	n, k := both(t)
	worker := n.worker(t)
	send := func(signal syscall.Signal, pids ...int) {
		t.Helper()
		for _, pid := range pids {
			if err := syscall.Kill(pid, signal); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond) // one is stopped or goes on before the other
		}
	}
	send(syscall.SIGSTOP, worker, n.pid())
	time.Sleep(5 * time.Second) // an interval of 1 s, a call timeout of 2 s, and more
	send(syscall.SIGCONT, n.pid(), worker)
	for start := time.Now(); time.Since(start) < 3*time.Second; time.Sleep(5 * time.Millisecond) {
		if _, gives := k.capacity(); quantity(gives) != 8 {
			t.Fatalf("%d GPUs are healthy after the agent was frozen", quantity(gives))
		}
	}
	if now := n.worker(t); now != worker {
		t.Error("the driver worker was replaced")
	}
}

// holder holds the ends of processes, whose numbers it reads, so that they cannot be killed, as when
// they hang in the kernel. Else they run on.
const holder = `
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

// hold returns what makes a process unkillable, and what lets all such processes end.
func hold(t *testing.T) (process func(pid int), release func()) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "holder")
	cc := exec.Command("cc", "-w", "-x", "c", "-o", program, "-")
	cc.Stdin = strings.NewReader(holder)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("compiling: %v\n%s", err, out)
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
	answers := bufio.NewScanner(out)
	process = func(pid int) {
		t.Helper()
		if _, err := in.Write([]byte(strconv.Itoa(pid) + "\n")); err != nil {
			t.Fatal(err)
		}
		if !answers.Scan() || answers.Text() != "0" {
			t.Fatalf("process %d cannot be traced: %q", pid, answers.Text())
		}
	}
	release = func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
	t.Cleanup(release)
	return process, release
}

// A worker that hangs in the kernel cannot be killed. Another one serves the GPUs that do not hang;
// when it hangs too, no GPU is healthy until one of them ends.
func TestWorkerHangsInTheKernel(t *testing.T) {
	n, k := both(t)
	process, release := hold(t)
	gpus := n.uuids()
	hang := func(gpu int) {
		t.Helper()
		if err := n.driver.Break(simdriver.Fault{GPU: gpus[gpu], Func: "nvmlDeviceGetMemoryInfo", Hang: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	before := n.counted(t)
	first := n.worker(t)
	process(first)
	hang(5)
	k.counts(t, 8, 7)
	n.awaitCalls(t, "nvmlInit_v2", before["nvmlInit_v2"]+1)
	n.awaitCalls(t, "nvmlDeviceRegisterEvents", before["nvmlDeviceRegisterEvents"]+uint64(len(gpus)-1)) // else the XID is lost
	second := n.workers(t)
	if len(second) != 2 {
		t.Fatalf("the driver workers are %v, want two", second)
	}
	if err := n.driver.RaiseXID(gpus[2], 13); err != nil {
		t.Fatal(err)
	}
	n.awaitXIDs(t, gpus[2], 13, 1)
	k.counts(t, 8, 7)

	for _, pid := range second {
		if pid != first {
			process(pid)
		}
	}
	hang(1)
	k.counts(t, 8, 0)
	n.awaitDevice(t, gpus[0], "driver")
	if now := n.workers(t); len(now) != 2 {
		t.Errorf("the driver workers are %v, want two", now)
	}
	if err := n.driver.Mend(); err != nil {
		t.Fatal(err)
	}
	release()
	k.counts(t, 8, 8)
	n.worker(t)
}

// The agent ends although its worker hangs in the kernel.
func TestEndWhileTheWorkerHangsInTheKernel(t *testing.T) {
	n, _ := both(t)
	process, _ := hold(t)
	process(n.worker(t))
	if err := n.driver.Break(simdriver.Fault{GPU: n.uuids()[5], Func: "nvmlDeviceGetMemoryInfo", Hang: time.Hour}); err != nil {
		t.Fatal(err)
	}
	n.awaitDevice(t, n.uuids()[5], "unresponsive")
	n.stopAgent(t)
}
