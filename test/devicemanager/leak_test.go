package devicemanager

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// slack is the variation of the numbers of open files and goroutines without a leak. A leak adds at least one file or
// goroutine for each kubelet, event set or worker.
const slack = 8

// TestNothingLeaks restarts the kubelet a thousand times under one agent, then makes the driver worker replace its
// event set repeatedly, and then replaces the worker repeatedly.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	const kubelets, eventSets, workers = 1000, 2 * slack, 5 * slack
	n := newNode(t, simdriver.H100x8())
	n.configure(t, patient)
	k := startKubelet(t, n.kubeletDir, 2)
	restartKubelet := func() {
		k = k.restart(t, 2)
		k.awaitGPUs(t, 8, 8)
	}
	n.startAgent(t)
	restartKubelet()
	n.awaitCalls(t, "nvmlEventSetWait_v2", 1)
	agent, worker := n.pid(), n.worker(t)
	agentFiles, workerFiles := openFiles(t, agent), openFiles(t, worker)

	for range kubelets {
		restartKubelet()
	}
	if calls := n.nvmlCallCounts(t); calls["nvmlInit_v2"] != 1 || calls["nvmlEventSetCreate"] != 1 {
		t.Errorf("after %d kubelet restarts: got NVML calls %v", kubelets, calls)
	}
	if err := n.driver.InjectFault(simdriver.Fault{Func: "nvmlEventSetWait_v2", Return: gpuIsLost}); err != nil {
		t.Fatal(err)
	}
	n.awaitCalls(t, "nvmlEventSetCreate", eventSets)
	if err := n.driver.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	if now := openFiles(t, worker); now > workerFiles+slack {
		t.Errorf("the driver worker has %d open files, had %d", now, workerFiles)
	}
	for i := range workers {
		n.replaceWorker(t, i%8 == 0)
	}
	calls := n.nvmlCallCounts(t)
	if open := calls["nvmlEventSetCreate"] - calls["nvmlEventSetFree"]; open > calls["nvmlInit_v2"] {
		t.Errorf("%d event sets not freed by %d workers", open, calls["nvmlInit_v2"])
	}
	restartKubelet()
	if now := openFiles(t, agent); now > agentFiles+slack {
		t.Errorf("the agent has %d open files, had %d", now, agentFiles)
	}
	n.worker(t)

	after := n.goroutines(t)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	restartKubelet()
	if fresh := n.goroutines(t); after > fresh+slack {
		t.Errorf("the agent has %d goroutines, a restarted one has %d", after, fresh)
	}
}

func (n *node) pid() int { return n.process.Process.Pid }

// worker returns the PID of the driver worker, the agent's only child.
func (n *node) worker(t *testing.T) int {
	t.Helper()
	workers := n.workers(t)
	if len(workers) != 1 {
		t.Fatalf("got driver workers %v, want one", workers)
	}
	return workers[0]
}

// workers returns the PIDs of the agent's children.
func (n *node) workers(t *testing.T) (pids []int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.pid()))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		text, _ := os.ReadFile(task) // the thread may have exited
		for child := range strings.FieldsSeq(string(text)) {
			pid, err := strconv.Atoi(child)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

// replaceWorker kills the driver worker or reloads the agent, and waits until the next worker has an event set.
func (n *node) replaceWorker(t *testing.T, kill bool) {
	t.Helper()
	pid, signal := n.pid(), syscall.SIGHUP
	if kill {
		pid, signal = n.worker(t), syscall.SIGKILL
	}
	before := n.nvmlCallCounts(t)
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
	n.awaitCalls(t, "nvmlInit_v2", before["nvmlInit_v2"]+1)
	n.awaitCalls(t, "nvmlEventSetCreate", before["nvmlEventSetCreate"]+1)
}

func openFiles(t *testing.T, pid int) int {
	t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// goroutines terminates the agent with SIGQUIT, which prints its goroutines, and returns their number.
func (n *node) goroutines(t *testing.T) int {
	t.Helper()
	process := n.process
	n.process = nil
	if err := process.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait() // returns the signal as an error
	found := regexp.MustCompile(`(?m)^goroutine \d+ `).FindAllString(n.logs.String(), -1)
	if len(found) == 0 {
		t.Fatal("the agent printed no goroutines")
	}
	return len(found)
}

// awaitCalls waits until an NVML function was called at least count times.
func (n *node) awaitCalls(t *testing.T, function string, count uint64) {
	t.Helper()
	for start := time.Now(); n.nvmlCallCounts(t)[function] < count; time.Sleep(time.Millisecond) {
		if time.Since(start) > timeout {
			t.Fatalf("%s was called %d times, want %d", function, n.nvmlCallCounts(t)[function], count)
		}
	}
}
