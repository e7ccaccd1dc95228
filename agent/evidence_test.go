package agent

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/kubelet"
)

// After firstResponseTimeout the agent proceeds without a container runtime, but never without a slow one, whose
// containers may hold devices.
func TestSlowRuntimeIsNotAbsent(t *testing.T) {
	c := collector{cfg: Config{Node: host.NewRoot(t.TempDir())}, log: slog.New(slog.DiscardHandler), started: time.Now()}
	if _, err := c.containers(t.Context()); err == nil {
		t.Error("the runtime is skipped before firstResponseTimeout")
	}
	c.started = time.Now().Add(-2 * firstResponseTimeout)
	expired, cancel := context.WithCancel(t.Context())
	cancel()
	if response, err := c.containers(expired); err == nil {
		t.Errorf("after the deadline: got %+v, want an error", response)
	}
	if response, err := c.containers(t.Context()); err != nil || len(response.Devices) > 0 || response.requested.IsZero() || !response.absent {
		t.Errorf("without a runtime: %+v, %v", response, err)
	}
	c.runtimes.responded = true
	if _, err := c.containers(t.Context()); err == nil {
		t.Error("a runtime that has responded before is skipped")
	}
}

// After the state was lost, a replica whose compute time is limited by the plan may have been allocated without that
// limit.
func TestReplicaOfAnotherConfig(t *testing.T) {
	inv := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", MemoryBytes: 80 << 30, MemoryLimits: gpu.MemoryLimitsSupported}}}
	rules := allocator.Rules{{Name: allocator.GPUResource, Replicas: 2, Limits: allocator.LimitMemoryAndCompute, FailRequestsGreaterThanOne: true}}
	r := partResolver{inv: inv, plan: allocator.Plan(inv, cdi.AgentKind, allocator.Policy{Rules: rules, Shares: allocator.DefaultShares()})}
	held := func(id string, names ...string) kubelet.Holder {
		return kubelet.Holder{PodUID: id, Resource: allocator.GPUResource, Device: id, CDI: names}
	}
	c := r.checkpoint(&kubelet.Checkpoint{Holders: []kubelet.Holder{
		held("GPU-a::0", "gpucdi.dev/gpu=GPU-a", "gpucdi.dev/replica=GPU-a::0-cbcbbfae"), held("GPU-a::1", "gpucdi.dev/gpu=GPU-a"),
	}})
	if a, b := c.Held[0].Part.Share, c.Held[1].Part.Share; a.Class != allocator.Ceiled || b.Class != allocator.PerhapsLimited || a.Count != 2 || b.Count != 2 {
		t.Errorf("shares %+v and %+v", a, b)
	}
}
