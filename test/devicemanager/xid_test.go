package devicemanager

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// xids is how often the agent has counted an XID of a GPU.
func (n *node) xids(t *testing.T, gpu string, xid int) int {
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

// awaitXIDs waits until the agent has counted an XID of a GPU so often.
func (n *node) awaitXIDs(t *testing.T, gpu string, xid, times int) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		now := n.xids(t, gpu, xid)
		if now >= times {
			return
		}
		if time.Since(start) > patience {
			t.Fatalf("the agent has counted XID %d of %s %d times, want %d", xid, gpu, now, times)
		}
	}
}

// applicationXIDs leave a GPU healthy.
var applicationXIDs = []int{8, 13, 31, 32, 37, 43, 45, 66, 67, 68, 69, 94, 109, 137}

// After a GPU is lost, waits on its event set fail. XIDs of other GPUs must be reported even if
// they come before the next probes.
func TestXIDAfterALostGPU(t *testing.T) {
	n, _ := both(t)
	lost, other := n.uuids()[5], n.uuids()[2]
	for i, xid := range applicationXIDs[:3] {
		if err := n.driver.Lose(lost); err != nil {
			t.Fatal(err)
		}
		n.awaitXIDs(t, lost, 79, i+1)
		time.Sleep(20 * time.Millisecond) // until the worker waits again, well within the probe interval of 1 s
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

// GPUs that come and go make the worker replace its event set again and again. Each XID of another
// GPU is reported, and counted once.
func TestNoXIDIsLostOrCountedTwice(t *testing.T) {
	n, _ := both(t)
	unstable, other := n.uuids()[5], n.uuids()[2]
	raised := map[int]int{}
	for i := range 200 {
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
		time.Sleep(50 * time.Millisecond) // 10 s in all: ten times lost, ten intervals
	}
	for xid, times := range raised {
		n.awaitXIDs(t, other, xid, times)
		if counted := n.xids(t, other, xid); counted != times {
			t.Errorf("XID %d was raised %d times and counted %d times", xid, times, counted)
		}
	}
	if sets := n.counted(t)["nvmlEventSetCreate"]; sets < 10 {
		t.Errorf("%d event sets were made: the test shows nothing", sets)
	}
}
