package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/mps"
	"github.com/gpucdi/gpucdi/runtime"
)

// replicated is a ceiledNode whose GPU has four replicas with limited compute time.
type replicated struct {
	*ceiledNode
	ledger allocator.Ledger
	inv    *gpu.Inventory
}

func newReplicated(t *testing.T) *replicated {
	n := &replicated{ceiledNode: newCeiledNode(t), ledger: allocator.Start(&allocator.Saved{Complete: true}, true, time.Now())}
	n.inv = &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", MemoryBytes: 81 << 30, MemoryLimits: gpu.MemoryLimitsSupported}}}
	n.latest.plan.parts = cdi.Parts{GPUs: map[string][]cdi.DeviceNode{"GPU-a": {{Path: "/dev/nvidia0", Major: 195}}}}
	n.share(allocator.LimitMemoryAndCompute)
	return n
}

// share advertises four replicas of the GPU with limits, without limits if they are empty.
func (n *replicated) share(limits allocator.Limits) {
	n.Helper()
	rule := allocator.Rule{Name: allocator.GPUResource, Replicas: 4, Limits: limits, FailRequestsGreaterThanOne: true}
	policy := allocator.Policy{Mode: allocator.ModeDevicePlugin, Rules: allocator.Rules{rule}, Shares: allocator.DefaultShares()}
	if err := policy.ValidateRules(); err != nil {
		n.Fatal(err)
	}
	resources, now := allocator.Plan(n.inv, cdi.AgentKind, policy), time.Now()
	n.ledger, _ = allocator.Next(n.ledger, allocator.Observation{
		Wanted:  allocator.Wants(resources, n.inv, func(string) bool { return true }),
		Present: allocator.PresentIn(n.inv), Grants: n.limits.gate.Grants(), Runtime: &allocator.Runtime{Requested: now},
	}, now)
	n.limits.gate.Advertise(n.ledger)
	n.latest.plan.resources = resources
	n.latest.offers = allocator.Offers(resources, n.ledger, n.inv, cdi.AgentKind)
}

// start allocates a replica to the pod, and starts its container.
func (n *replicated) start(id string) error {
	n.Helper()
	if err := n.limits.gate.Allocate(allocator.GPUResource, []string{id}, true); err != nil {
		n.Fatal(err)
	}
	n.holders = []kubelet.Holder{{Namespace: "default", Pod: "pod", Resource: allocator.GPUResource, Device: id}}
	pod := kubelet.Pod{UID: "pod-uid", Devices: []allocator.Key{{Outlet: allocator.GPUResource, ID: id}, {Outlet: "other", ID: "1"}}}
	return n.limits.preStart(n.Context(), allocator.GPUResource, pod)
}

// use sets whether a container with the GPU runs.
func (n *replicated) use(running bool) {
	n.latest.running.containers = nil
	if running {
		n.latest.running.containers = []runtime.Container{{Devices: map[uint64]bool{unix.Mkdev(195, 0): true}}}
	}
}

func (n *replicated) checkFault(want string) {
	n.Helper()
	if f := n.limits.check(n.Context())["GPU-a"]; want == "" && !f.None() || want != "" && !strings.Contains(f.Message, want) {
		n.Errorf("fault %+v, want %q", f, want)
	}
}

func (n *replicated) checkSpecs(want ...string) {
	n.Helper()
	names, err := host.Names(n.limits.specDir, 100)
	slices.Sort(names)
	if err != nil || !slices.Equal(names, want) {
		n.Errorf("specs %q, error %v, want %q", names, err, want)
	}
}

// The containers of replicas are clients of the GPU's server with an equal part of the compute time. The server runs as
// long as the ledger has such a replica.
func TestComputeLimitsOfReplicas(t *testing.T) {
	n := newReplicated(t)
	n.checkFault("")
	if n.mode != gpu.ComputeModeExclusiveProcess || !n.server {
		t.Errorf("compute mode %s, server %t before a pod starts", n.mode, n.server)
	}
	if err := n.start("GPU-a::2"); err != nil {
		t.Fatal(err)
	}
	want := mps.Share{GPU: "GPU-a", Name: "gpu_a_2", Percentage: 25}
	if got := n.shares["gpu_a_2"]; got != want || len(n.shares) != 1 {
		t.Errorf("shares %v, want %v", n.shares, want)
	}
	n.checkSpecs("gpucdi.dev-replica-GPU-a::2.json")
	n.server = false // the daemon was restarted
	n.checkFault("")
	if !n.server {
		t.Error("the server was not restored")
	}
	n.share("")
	n.checkFault("") // the replica is draining, its pod uses the server
	n.checkSpecs("gpucdi.dev-replica-GPU-a::2.json")
	if n.mode != gpu.ComputeModeExclusiveProcess || !n.server {
		t.Errorf("compute mode %s, server %t while a pod has the replica", n.mode, n.server)
	}
	n.ledger = allocator.Start(&allocator.Saved{Complete: true}, true, time.Now())
	n.share("")
	n.checkFault("")
	n.check(gpu.ComputeModeDefault) // no server, share or spec is left
}

// A container does not start if its limit is not certain.
func TestReplicaNotLimited(t *testing.T) {
	n := newReplicated(t)
	refuses := func(want string) {
		t.Helper()
		if err := n.start("GPU-a::1"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		if len(n.shares) > 0 {
			t.Errorf("shares %v", n.shares)
		}
	}
	n.pod.RootContainers = []string{"main"}
	refuses(`limiting the compute time of pod pod-uid: containers ["main"] of pod default/pod may run as root`)
	n.pod.RootContainers = nil
	n.pod.UID = "another-uid"
	refuses("pod default/pod was replaced")
	n.pod.UID = "pod-uid"
	n.problem = errors.New("the MPS daemon does not run")
	refuses("the MPS daemon does not run")
	n.checkFault("the MPS daemon does not run")
	n.problem = nil
	pods := n.limits.pods
	n.limits.pods = nil
	refuses("cannot be checked without API server access")
	n.limits.pods = pods
	n.holders = nil
	pod := kubelet.Pod{UID: "pod-uid", Devices: []allocator.Key{{Outlet: allocator.GPUResource, ID: "GPU-a::1"}}}
	if err := n.limits.preStart(t.Context(), allocator.GPUResource, pod); err == nil || !strings.Contains(err.Error(), "the kubelet lists no pod with GPU-a::1") {
		t.Errorf("error %v", err)
	}
	n.checkFault("")
}

// A server that does not work is replaced once no container has its GPU. Without containers it is not probed.
func TestServerOfReplicasReplaced(t *testing.T) {
	n := newReplicated(t)
	n.probe = errors.New("no response within 10s")
	n.checkFault("")
	if err := n.start("GPU-a::0"); err != nil {
		t.Fatal(err)
	}
	n.use(true)
	n.checkFault("calling CUDA through MPS: no response within 10s")
	n.checkFault("calling CUDA through MPS: no response within 10s")
	if n.shares["gpu_a_0"].Percentage != 25 {
		t.Errorf("the server was replaced while a container has its GPU; shares %v", n.shares)
	}
	n.use(false)
	n.checkFault("")
	if len(n.shares) > 0 || !n.server {
		t.Errorf("the server was not replaced; shares %v", n.shares)
	}
	n.probe = nil
	n.use(true)
	n.checkFault("")
}
