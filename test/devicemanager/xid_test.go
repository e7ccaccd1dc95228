package devicemanager

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// xidCount returns the agent's count of an XID of a GPU.
func (n *node) xidCount(t *testing.T, gpu string, xid int) int {
	t.Helper()
	series := fmt.Sprintf(`gpucdi_xids_total\{gpu=%q,xid="%d"\} (\d+)\n`, gpu, xid)
	found := regexp.MustCompile(series).FindStringSubmatch(n.get(t, "/metrics"))
	if found == nil {
		return 0
	}
	count, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return count
}

// awaitXIDs waits until the agent has counted an XID of a GPU at least want times.
func (n *node) awaitXIDs(t *testing.T, gpu string, xid, want int) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		now := n.xidCount(t, gpu, xid)
		if now >= want {
			return
		}
		if time.Since(start) > timeout {
			t.Fatalf("XID %d of %s was counted %d times, want %d", xid, gpu, now, want)
		}
	}
}

// applicationXIDs are the XIDs of class application, which leave a GPU healthy.
var applicationXIDs = []int{8, 13, 31, 32, 37, 43, 45, 66, 67, 68, 69, 94, 109, 137}

// After a GPU is lost, waits on the event set fail. XIDs of other GPUs must be reported even if they occur before the
// next probe.
func TestXIDAfterLostGPU(t *testing.T) {
	t.Parallel()
	n, _ := startNode(t)
	lost, other := n.uuids()[5], n.uuids()[2]
	for i, xid := range applicationXIDs[:3] {
		if err := n.driver.Lose(lost); err != nil {
			t.Fatal(err)
		}
		n.awaitXIDs(t, lost, 79, i+1)
		time.Sleep(20 * time.Millisecond) // for the worker to wait again; much shorter than the probe interval of 1 s
		if err := n.driver.RaiseXID(other, xid); err != nil {
			t.Fatal(err)
		}
		n.awaitXIDs(t, other, xid, 1)
		if err := n.driver.Return(lost); err != nil {
			t.Fatal(err)
		}
		n.awaitDevice(t, lost, "")
	}
}

// The XID of a lost GPU remains the reason of its fault when another driver worker, which cannot read the GPU, has
// started.
func TestXIDOfUnreadableGPU(t *testing.T) {
	t.Parallel()
	n, _ := startNode(t)
	lost := n.uuids()[5]
	if err := n.driver.Lose(lost); err != nil {
		t.Fatal(err)
	}
	n.awaitXIDs(t, lost, 79, 1)
	n.configure(t, "health: {probeInterval: 2s, quietPeriod: 3s, callTimeout: 2s}") // another interval, another worker
	n.awaitStatus(t, func(s nodeStatus) bool {
		return slices.ContainsFunc(s.Devices, func(d deviceStatus) bool {
			return d.ID == lost && d.Fault != nil && d.Fault.Code == "xid_79" &&
				d.Fault.Message == "XID 79: GPU has fallen off the bus; opening GPU 5: GPU is lost"
		})
	})
	if err := n.driver.Return(lost); err != nil {
		t.Fatal(err)
	}
	n.awaitDevice(t, lost, "")
}

// The worker replaces its event set when a GPU is lost or returns. Even if that happens repeatedly, each XID of another
// GPU is counted exactly once.
func TestXIDsAreCountedExactlyOnce(t *testing.T) {
	t.Parallel()
	n, _ := startNode(t, patient)
	unstable, other := n.uuids()[5], n.uuids()[2]
	raised := map[int]int{}
	sets := func() uint64 { return n.nvmlCallCounts(t)["nvmlEventSetCreate"] }
	for i := 0; i < 200 || i < 1000 && sets() < 10; i++ { // a busy machine probes less often
		var err error
		switch i % 20 {
		case 0:
			err = n.driver.Lose(unstable)
		case 10:
			err = n.driver.Return(unstable)
		}
		xid := applicationXIDs[i%len(applicationXIDs)]
		if err == nil {
			err = n.driver.RaiseXID(other, xid)
		}
		if err != nil {
			t.Fatal(err)
		}
		raised[xid]++
		time.Sleep(50 * time.Millisecond) // usually 10 s in total: the GPU is lost ten times, during about ten probes
	}
	for xid, times := range raised {
		n.awaitXIDs(t, other, xid, times)
		if counted := n.xidCount(t, other, xid); counted != times {
			t.Errorf("XID %d was raised %d times and counted %d times", xid, times, counted)
		}
	}
	if sets() < 10 {
		t.Errorf("%d event sets were created, want at least 10", sets())
	}
}

// XIDs of a GPU are counted while a call about it fails, and although its first registration for events has failed.
func TestXIDsOfFailingGPU(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	gpu := n.uuids()[5]
	inject := func(function string) {
		t.Helper()
		if err := n.driver.InjectFault(simdriver.Fault{GPU: gpu, Func: function, Return: unknownError}); err != nil {
			t.Fatal(err)
		}
	}
	clearFaults := func() {
		t.Helper()
		if err := n.driver.ClearFaults(); err != nil {
			t.Fatal(err)
		}
	}
	raise := func(xid int) {
		t.Helper()
		if err := n.driver.RaiseXID(gpu, xid); err != nil {
			t.Fatal(err)
		}
		n.awaitXIDs(t, gpu, xid, 1)
	}
	const register = "nvmlDeviceRegisterEvents"
	inject(register)
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	n.awaitCalls(t, register, 9) // the ninth is the second attempt
	clearFaults()
	for start := time.Now(); n.xidCount(t, gpu, 13) == 0; time.Sleep(50 * time.Millisecond) {
		if err := n.driver.RaiseXID(gpu, 13); err != nil {
			t.Fatal(err)
		}
		if time.Since(start) > timeout {
			t.Fatal("no XID was counted after the GPU could be registered")
		}
	}

	inject("nvmlDeviceGetTotalEccErrors")
	k.awaitGPUs(t, 8, 7)
	raise(119)
	clearFaults()
}
