package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/kubelet"
)

// fakeMemorySettings keeps the memory limits of cgroups, for a GPU whose driver rounds them down.
type fakeMemorySettings struct {
	limits map[string]uint64 // by cgroup
	sets   int
	fails  func() error // of each call; nil: it succeeds
}

func (f *fakeMemorySettings) LimitsMemory() bool { return true }

func (f *fakeMemorySettings) MemoryLimit(_ context.Context, _, cgroup string) (limit, used uint64, err error) {
	if f.fails != nil {
		if err := f.fails(); err != nil {
			return 0, 0, err
		}
	}
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

// The limit of a container that starts while the driver worker is replaced is set when the worker runs again. Other
// errors are returned immediately.
func TestPreStartRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newReplicated(t)
		n.share(allocator.LimitMemory)
		n.latest.known = n.inv
		m, settings := n.newMemoryLimits()
		preStart := func(gap time.Duration, problem error) (took time.Duration, err error) {
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), preStartTimeout)
			defer cancel()
			settings.fails = func() error {
				if time.Since(start) < gap {
					return problem
				}
				return nil
			}
			err = m.preStart(ctx, allocator.GPUResource, kubelet.Pod{UID: "uid", Devices: []allocator.Key{{Outlet: allocator.GPUResource, ID: "GPU-a::1"}}})
			return time.Since(start), err
		}
		hangs := errors.New("the driver hangs")
		if took, err := preStart(time.Minute, hangs); !errors.Is(err, hangs) || took > 0 {
			t.Errorf("after %s: error %v", took, err)
		}
		if took, err := preStart(time.Minute, driver.ErrNoWorker); !errors.Is(err, driver.ErrNoWorker) || took != preStartTimeout {
			t.Errorf("after %s: error %v", took, err)
		}
		if took, err := preStart(time.Second, driver.ErrNoWorker); err != nil || took > 2*time.Second || len(settings.limits) != 1 {
			t.Errorf("after %s: error %v, limits %v", took, err, settings.limits)
		}
	})
}

// A container that starts sets the sum of its pod's replicas, also if the limit was computed from an outdated checkpoint
// that lacks some of them.
func TestPreStartRaisesLimit(t *testing.T) {
	n := newReplicated(t)
	n.share(allocator.LimitMemory)
	n.latest.known = n.inv
	m, settings := n.newMemoryLimits()
	replicas := []allocator.Key{{Outlet: allocator.GPUResource, ID: "GPU-a::0"}, {Outlet: allocator.GPUResource, ID: "GPU-a::1"}}
	var limits []uint64
	for _, devices := range [][]allocator.Key{replicas[:1], replicas} {
		if err := m.preStart(t.Context(), allocator.GPUResource, kubelet.Pod{UID: "uid", Devices: devices}); err != nil {
			t.Fatal(err)
		}
		limits = append(limits, settings.limits[limitedPod])
	}
	if limits[1] != 2*limits[0] {
		t.Errorf("limits %d", limits)
	}
}
