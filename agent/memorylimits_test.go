package agent

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// fakeMemorySettings keeps the memory limits of cgroups, for a GPU whose driver rounds them down.
type fakeMemorySettings struct {
	limits map[string]uint64 // by cgroup
	sets   int
}

func (f *fakeMemorySettings) LimitsMemory() bool { return true }

func (f *fakeMemorySettings) MemoryLimit(_ context.Context, _, cgroup string) (limit, used uint64, err error) {
	if limit, found := f.limits[cgroup]; found {
		return limit, 0, nil
	}
	return gpu.MemoryUnlimited, 0, nil
}

func (f *fakeMemorySettings) SetMemoryLimit(_ context.Context, _, cgroup string, limit uint64) error {
	f.limits[cgroup] = limit - limit%gpu.MinMemoryLimit
	f.sets++
	return nil
}

// limitedPod is the cgroup of the pod "uid".
const limitedPod = "/sys/fs/cgroup/kubepods/poduid"

// newMemoryLimits returns the limits of a node with the pod "uid".
func (n *replicated) newMemoryLimits() (memoryLimits, *fakeMemorySettings) {
	n.Helper()
	root := host.NewRoot(n.TempDir())
	if err := os.MkdirAll(root.LocalPath(limitedPod), 0o755); err != nil {
		n.Fatal(err)
	}
	settings := &fakeMemorySettings{limits: map[string]uint64{}}
	return memoryLimits{node: root, log: slog.New(slog.DiscardHandler), gate: n.limits.gate, settings: settings,
		latest: n.limits.latest, used: &usedMemory{}}, settings
}

// A limit that the driver has rounded down is not set again.
func TestMemoryLimitRounded(t *testing.T) {
	n := newReplicated(t)
	n.ledger = allocator.Start(&allocator.Saved{Complete: true}, true, time.Now())
	n.advertise(allocator.Policy{Mode: allocator.ModeDRA, Shares: allocator.DefaultShares(),
		Rules: allocator.Rules{{Name: allocator.GPUResource, Share: allocator.ShareMemory}}})
	amount := allocator.Amount{Cores: 10, Memory: 1<<30 + 1}
	err := n.limits.gate.Prepare(allocator.Claim{UID: "claim", Pods: []string{"uid"}, Devices: []string{"GPU-a"}, Amounts: map[string]allocator.Amount{"GPU-a": amount}})
	if err != nil {
		t.Fatal(err)
	}
	m, settings := n.newMemoryLimits()
	for range 2 {
		if err := m.limitByClaims(t.Context(), "uid"); err != nil {
			t.Fatal(err)
		}
	}
	if settings.limits[limitedPod] != 1<<30 || settings.sets != 1 {
		t.Errorf("limits %v, set %d times", settings.limits, settings.sets)
	}
}
