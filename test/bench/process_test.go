package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestNumbers(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		want map[string]int
	}{
		"smaps_rollup": {
			"Rss:               20312 kB\nPss:                9876 kB\nAnonymous:          7032 kB\n",
			map[string]int{"Rss": 20312, "Pss": 9876, "Anonymous": 7032},
		},
		"status": {
			"Name:\tgpucdi\nState:\tS (sleeping)\nPid:\t42\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t3\n",
			map[string]int{"Pid": 42, "voluntary_ctxt_switches": 150, "nonvoluntary_ctxt_switches": 3},
		},
		"several numbers": {"Uid:\t7\t8\t9\n", map[string]int{"Uid": 7}},
		"no numbers":      {"Name:\tgpucdi\nEmpty:\nNo colon 5\n", map[string]int{}},
		"no line break":   {"Threads:\t9", map[string]int{"Threads": 9}},
		"empty":           {"", map[string]int{}},
	} {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := numbers(file); err != nil || !maps.Equal(got, tc.want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, tc.want)
		}
	}
	if got, err := numbers(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Errorf("a missing file returns %v", got)
	}
}

func TestMemoryFigure(t *testing.T) {
	got, want := memory{resident: 20_000, anonymous: 7_500}.figure(), figure{"20.5 MB, 7.7 MB anonymous", 20.48}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestMemoryBeyond(t *testing.T) {
	used := memory{resident: 20_000, anonymous: 7_500}
	if got, want := (memory{resident: 22_500, anonymous: 7_500}).beyond(used), (figure{"+2.6 MB, 23.0 MB, 7.7 MB anonymous in total", 2.56}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := used.beyond(memory{resident: 21_000}), (figure{"-1.0 MB, 20.5 MB, 7.7 MB anonymous in total", -1.024}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestMedianMemory(t *testing.T) {
	want := memory{resident: 2, anonymous: 9}
	if got := medianMemory([]memory{{3, 1}, want, {1, 5}}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestUsageFigure(t *testing.T) {
	before, now := usage{cpu: 100 * time.Millisecond, switches: 40}, usage{cpu: 115 * time.Millisecond, switches: 60}
	got := now.since(before)
	if want := (usage{cpu: 15 * time.Millisecond, switches: 20}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := got.figure(30*time.Second), (figure{"15.0 ms of CPU, 0.05 %, 20 context switches", 15_000_000}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// The memory and the CPU time of a process include those of its children.
func TestProcesses(t *testing.T) {
	parent := exec.Command("sh", "-c", "sleep 1000 & echo $!; wait")
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	t.Cleanup(func() {
		for _, pid := range []int{child, parent.Process.Pid} {
			if p, err := os.FindProcess(pid); err == nil && pid > 0 {
				_ = p.Kill() // it may have exited
			}
		}
		_ = parent.Wait() // killed
	})
	if _, err := fmt.Fscan(stdout, &child); err != nil {
		t.Fatal(err)
	}

	pids, err := processesOf(parent.Process.Pid)
	if want := []int{parent.Process.Pid, child}; err != nil || !slices.Equal(pids, want) {
		t.Fatalf("got %v, %v, want %v", pids, err, want)
	}
	if got, err := processesOf(child); err != nil || !slices.Equal(got, []int{child}) {
		t.Errorf("got %v, %v, want only %d", got, err, child)
	}
	var sum usage
	for _, pid := range pids {
		u := awaitUsage(t, pid)
		sum.cpu, sum.switches = sum.cpu+u.cpu, sum.switches+u.switches
	}
	if got, err := usageOf(pids); err != nil || got.cpu < sum.cpu || got.switches < sum.switches {
		t.Errorf("the CPU usage of both processes is %+v, %v, want at least %+v", got, err, sum)
	}

	var each []memory
	for _, pid := range pids {
		m, err := memoryOf([]int{pid})
		if err != nil || m.resident <= 0 || m.anonymous <= 0 {
			t.Errorf("the memory of a process is %+v, %v", m, err)
		}
		each = append(each, m)
	}
	both, err := memoryOf(pids)
	if err != nil || both.resident <= max(each[0].resident, each[1].resident) || both.anonymous <= max(each[0].anonymous, each[1].anonymous) {
		t.Errorf("the memory of both processes is %+v, %v, want more than %+v", both, err, each)
	}
}

// awaitUsage returns the CPU usage of a process that may not have run yet.
func awaitUsage(t *testing.T, pid int) usage {
	t.Helper()
	for {
		u, err := usageOf([]int{pid})
		if err != nil {
			t.Fatal(err)
		}
		if u.cpu > 0 && u.switches > 0 {
			return u
		}
		time.Sleep(10 * time.Millisecond)
	}
}
