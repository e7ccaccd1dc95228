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

// few is what may come and go by itself. What leaks comes for each kubelet,
// event set or worker.
const few = 8

// TestNothingLeaks lets a thousand kubelets come and go under one agent, then
// event sets of the driver worker, and then the worker: it is
// killed with all that it has of the driver, so there must be one of it.
func TestNothingLeaks(t *testing.T) {
	const kubelets, eventSets, workers = 1000, 2 * few, 5 * few
	n := newNode(t, simdriver.H100x8())
	// No worker is too slow. One that is killed too early may take a GPU with it for the quiet period.
	n.configure(t, "health: {probeInterval: 1s, quietPeriod: 3s, callTimeout: 1m}")
	k := startKubelet(t, n.kubeletDir, 2)
	cycle := func() {
		k = k.restart(t, 2)
		k.counts(t, 8, 8)
	}
	n.startAgent(t)
	cycle()
	n.awaitCalls(t, "nvmlEventSetWait_v2", 1)
	agent, worker := n.pid(), n.worker(t)
	ofAgent, ofWorker := openFiles(t, agent), openFiles(t, worker)

	for range kubelets {
		cycle()
	}
	if calls := n.counted(t); calls["nvmlInit_v2"] != 1 || calls["nvmlEventSetCreate"] != 1 {
		t.Errorf("%d kubelets led to the calls %v", kubelets, calls)
	}
	if err := n.driver.Break(simdriver.Fault{Func: "nvmlEventSetWait_v2", Return: gpuIsLost}); err != nil {
		t.Fatal(err)
	}
	n.awaitCalls(t, "nvmlEventSetCreate", eventSets)
	if err := n.driver.Mend(); err != nil {
		t.Fatal(err)
	}
	if now := openFiles(t, worker); now > ofWorker+few {
		t.Errorf("the driver worker has %d open files, before %d", now, ofWorker)
	}
	for i := range workers {
		n.replaceWorker(t, i%8 == 0)
	}
	calls := n.counted(t)
	if left := calls["nvmlEventSetCreate"] - calls["nvmlEventSetFree"]; left > calls["nvmlInit_v2"] {
		t.Errorf("%d event sets are left of %d processes", left, calls["nvmlInit_v2"])
	}
	cycle()
	if now := openFiles(t, agent); now > ofAgent+few {
		t.Errorf("the agent has %d open files, before %d", now, ofAgent)
	}
	n.worker(t)

	after := n.goroutines(t)
	n.startAgent(t)
	k.counts(t, 8, 8)
	cycle()
	if fresh := n.goroutines(t); after > fresh+few {
		t.Errorf("the agent has %d goroutines, one that has just started %d", after, fresh)
	}
}

func (n *node) pid() int { return n.process.Process.Pid }

// worker is the agent's driver worker, of which there must be one.
func (n *node) worker(t *testing.T) int {
	t.Helper()
	workers := n.workers(t)
	if len(workers) != 1 {
		t.Fatalf("the agent has the children %v, want one", workers)
	}
	return workers[0]
}

// workers are the agent's children.
func (n *node) workers(t *testing.T) (pids []int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.pid()))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		text, _ := os.ReadFile(task) // a thread may just have ended
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

// replaceWorker has another process hold the driver, and waits until it listens
// for events.
func (n *node) replaceWorker(t *testing.T, kill bool) {
	t.Helper()
	pid, signal := n.pid(), syscall.SIGHUP
	if kill {
		pid, signal = n.worker(t), syscall.SIGKILL
	}
	before := n.counted(t)
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

// goroutines ends the agent by the signal that lets a Go program tell them.
func (n *node) goroutines(t *testing.T) int {
	t.Helper()
	process := n.process
	n.process = nil
	if err := process.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait() // the signal is its error
	told := regexp.MustCompile(`(?m)^goroutine \d+ `).FindAllString(n.said.String(), -1)
	if len(told) == 0 {
		t.Fatal("the agent tells no goroutines")
	}
	return len(told)
}

// awaitCalls waits until the driver's function was called that often.
func (n *node) awaitCalls(t *testing.T, function string, times uint64) {
	t.Helper()
	for start := time.Now(); n.counted(t)[function] < times; time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("%s was called %d times, want %d", function, n.counted(t)[function], times)
		}
	}
}
