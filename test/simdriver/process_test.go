package simdriver_test

import (
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// Two processes share a GPU. Each is listed with its own memory until it ends, and only in a PID namespace in which it
// is visible.
func TestProcesses(t *testing.T) {
	d := install(t, simdriver.PCIe4())
	reader, first, second := startProbe(t, d), startProbe(t, d), startProbe(t, d)
	reader.open(4)
	reader.want("processes 0", "0")
	first.want("alloc 100", "0")
	first.want("alloc 20", "0")
	firstOnly := fmt.Sprintf("0 %d:120", first.cmd.Process.Pid)
	reader.want("processes 0", firstOnly)
	reader.want("processes 1", "0")
	second.want("alloc 40000000", "2") // more than the GPU has
	second.want("alloc 7", "0")
	reader.send("processes 0")
	both := []string{firstOnly + fmt.Sprintf(" %d:7", second.cmd.Process.Pid), fmt.Sprintf("0 %d:7 %s", second.cmd.Process.Pid, firstOnly[2:])}
	if got := reader.result(); got != both[0] && got != both[1] {
		t.Errorf("processes are %q, want %q in any order", got, both[0])
	}

	isolated := exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", buildProbe(t))
	other := startProbeCommand(t, d, isolated)
	other.open(4)
	other.want("processes 0", "0")
	other.want("alloc 3", "0")
	other.want("processes 0", "0 1:3")

	second.kill()
	must(t, isolated.Process.Kill()) // its child ends some time later
	got := ""
	for start := time.Now(); got != firstOnly && time.Since(start) < time.Minute; time.Sleep(time.Millisecond) {
		reader.send("processes 0")
		got = reader.result()
	}
	if got != firstOnly {
		t.Errorf("processes are %q, want %q", got, firstOnly)
	}
}

// The processes on a GPU share its memory, even if one of them cannot list the others.
func TestSharedMemory(t *testing.T) {
	d := install(t, simdriver.PCIe4())
	first, second := startProbe(t, d), startProbe(t, d)
	isolated := startProbeCommand(t, d, exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", buildProbe(t)))
	isolated.want("alloc 46000", "0") // of 46068
	first.want("alloc 60", "0")
	second.want("alloc 9", "2")
	second.want("alloc 8", "0")
	first.want("alloc 1", "2")

	must(t, second.cmd.Process.Kill())
	_ = second.cmd.Wait()
	first.want("alloc 8", "0")
	isolated.want("alloc 1", "2")
}

func TestMIGProcesses(t *testing.T) {
	d := install(t, simdriver.A100MIG())
	reader, user := startProbe(t, d), startProbe(t, d)
	reader.open(8)
	user.want("alloc 9", "0") // of the first MIG device of the first GPU
	reader.want("mig-processes 0 0", fmt.Sprintf("0 %d:9", user.cmd.Process.Pid))
	reader.want("mig-processes 0 1", "0")
	reader.want("processes 1", "0")

	m := d.State().GPUs[0].MIG[1]
	must(t, d.Update(func(s *simdriver.State) error {
		s.Processes = []simdriver.Process{{Device: m.UUID, PID: 1234, Memory: 5 << 20}}
		return nil
	}))
	reader.want("mig-processes 0 1", "0 1234:5")
}
