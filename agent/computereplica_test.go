package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
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
	n.advertise(policy)
}

func (n *replicated) advertise(policy allocator.Policy) {
	resources, now := allocator.Plan(n.inv, cdi.AgentKind, policy), time.Now()
	n.ledger, _ = allocator.Next(n.ledger, allocator.Observation{
		Wanted:  allocator.Wants(resources, n.inv, func(string) bool { return true }),
		Present: allocator.PresentIn(n.inv), Grants: n.limits.gate.Grants(), Runtime: &allocator.Runtime{Requested: now},
	}, now)
	n.limits.gate.Advertise(n.ledger)
	n.latest.plan.resources = resources
	n.latest.offers = allocator.Offers(resources, n.ledger, n.inv, cdi.AgentKind)
}

// start allocates a replica to the pod, and starts its container with CDI devices.
func (n *replicated) start(id string, names ...string) error {
	n.Helper()
	if err := n.limits.gate.Allocate(allocator.GPUResource, []string{id}, true); err != nil {
		n.Fatal(err)
	}
	n.latest.running.checkpoint.Holders = []kubelet.Holder{{PodUID: "pod-uid", Container: "main", Resource: allocator.GPUResource, Device: id, CDI: names}}
	pod := kubelet.Pod{UID: "pod-uid", Devices: []allocator.Key{{Outlet: allocator.GPUResource, ID: id}, {Outlet: "other", ID: "1"}}, CDI: names}
	return n.limits.preStart(n.Context(), allocator.GPUResource, pod)
}

// settle lets so much time pass that the list of running containers is newer than the start of a container. running is
// whether it has the container of the pod. Privileged containers do not count: they have all GPUs.
func (n *replicated) settle(running bool) {
	clear(n.limits.started)
	n.latest.running.containers = []runtime.Container{{Name: "agent", Privileged: true, Devices: map[uint64]bool{unix.Mkdev(195, 0): true}}}
	if running {
		n.latest.running.containers = append(n.latest.running.containers, runtime.Container{Name: "main", Pod: runtime.Pod{UID: "pod-uid"}})
	}
}

func (n *replicated) checkFault(want string) {
	n.Helper()
	if f := n.limits.check(n.Context(), nil)["GPU-a"]; want == "" && !f.None() || want != "" && !strings.Contains(f.Message, want) {
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
	if err := n.start("GPU-a::2", "gpucdi.dev/replica=GPU-a::2-cbcbbfae"); err != nil {
		t.Fatal(err)
	}
	want := mps.Share{GPU: "GPU-a", Name: "replica_2_cbcbbfae", Percentage: 25}
	if got := n.shares[want.Name]; got != want || len(n.shares) != 1 {
		t.Errorf("shares %v, want %v", n.shares, want)
	}
	n.settle(true)
	n.checkSpecs("gpucdi.dev-replica-GPU-a::2-cbcbbfae.json")
	n.server = false // the daemon was restarted
	n.checkFault("")
	if !n.server {
		t.Error("the server was not restored")
	}
	n.share("")
	n.checkFault("") // the replica is draining, its pod uses the server
	n.checkSpecs("gpucdi.dev-replica-GPU-a::2-cbcbbfae.json")
	if n.mode != gpu.ComputeModeExclusiveProcess || !n.server {
		t.Errorf("compute mode %s, server %t while a pod has the replica", n.mode, n.server)
	}
	n.ledger = allocator.Start(&allocator.Saved{Complete: true}, true, time.Now())
	n.share("") // the state was lost and the config changed, but the container runs
	n.checkFault("")
	n.checkSpecs("gpucdi.dev-replica-GPU-a::2-cbcbbfae.json")
	if n.mode != gpu.ComputeModeExclusiveProcess || !n.server {
		t.Errorf("compute mode %s, server %t while a container uses the replica", n.mode, n.server)
	}
	n.latest.running.checkpoint.Holders = nil
	n.settle(false)
	n.checkFault("")
	n.check(gpu.ComputeModeDefault) // no server, share or spec is left
	if changed := n.limits.changed.all(); len(changed) > 0 {
		t.Errorf("changed compute modes %v", changed)
	}
}

// The compute mode is reset even if the daemon has ended, and if the agent is restarted before it succeeds.
func TestComputeModeReset(t *testing.T) {
	n := newReplicated(t)
	n.checkFault("")
	n.server = false // the daemon has ended
	n.modeErr = errors.New("the driver hangs")
	n.ledger = allocator.Start(&allocator.Saved{Complete: true}, true, time.Now())
	n.share("")
	n.checkFault("the driver hangs")
	n.limits.changed = newExclusiveGPUs(n.limits.changed.dir, n.limits.log)
	if !n.limits.changed.has("GPU-a") {
		t.Error("the change of the compute mode is not saved")
	}
	n.modeErr = nil
	n.checkFault("")
	if n.mode != gpu.ComputeModeDefault || len(newExclusiveGPUs(n.limits.changed.dir, n.limits.log).all()) > 0 {
		t.Errorf("compute mode %s", n.mode)
	}
}

// While another pod holds the GPU without MPS, replicas wait, and the compute mode is not changed.
func TestReplicasWaitForOtherHolders(t *testing.T) {
	n := &replicated{ceiledNode: newCeiledNode(t), ledger: allocator.Start(&allocator.Saved{Complete: true}, true, time.Now())}
	n.inv = &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", MemoryBytes: 81 << 30, MemoryLimits: gpu.MemoryLimitsSupported}}}
	n.advertise(allocator.Policy{Mode: allocator.ModeDevicePlugin, Shares: allocator.DefaultShares()})
	if err := n.limits.gate.Allocate(allocator.GPUResource, []string{"GPU-a"}, false); err != nil {
		t.Fatal(err)
	}
	n.share(allocator.LimitMemoryAndCompute)
	n.checkFault("")
	if n.mode != gpu.ComputeModeDefault || n.server {
		t.Errorf("compute mode %s, server %t while a pod has the whole GPU", n.mode, n.server)
	}
}

// The path of each socket fits.
func TestReplicaNames(t *testing.T) {
	control := mps.Control{Dir: "/run/gpucdi/mps"}
	names := map[string]bool{}
	for _, outlet := range []string{"nvidia.com/gpu", "nvidia.com/gpu.shared"} {
		for _, number := range []string{"9", "99"} {
			uuid := "GPU-167534cb-ed86-5a78-8a53-dea5dfe08240"
			s := mps.Share{GPU: uuid, Name: namespaceOf(allocator.Key{Outlet: outlet, ID: uuid + "::" + number})}
			if socket := control.Directory(s) + "/control"; len(socket) > 107 {
				t.Errorf("%s has %d bytes", socket, len(socket))
			}
			names[s.Name] = true
		}
	}
	if len(names) != 4 {
		t.Errorf("names %v", names)
	}
}

// The namespaces of replicas and claims that do not exist any more are removed.
func TestNamespacesPruned(t *testing.T) {
	n := newReplicated(t)
	if err := n.start("GPU-a::1", "gpucdi.dev/replica=GPU-a::1-cbcbbfae"); err != nil {
		t.Fatal(err)
	}
	n.shares["former"] = mps.Share{}
	n.checkFault("")
	if len(n.shares) != 2 {
		t.Errorf("shares %v are pruned while the snapshot may be older", n.shares)
	}
	n.settle(true)
	n.checkFault("")
	if names := slices.Collect(maps.Keys(n.shares)); len(names) != 1 || !strings.HasPrefix(names[0], "replica_1_") {
		t.Errorf("shares %v", names)
	}
}

// A container does not start if its limit is not certain.
func TestReplicaNotLimited(t *testing.T) {
	n := newReplicated(t)
	refuses := func(want string) {
		t.Helper()
		if err := n.start("GPU-a::1", "gpucdi.dev/replica=GPU-a::1-cbcbbfae"); err == nil || !strings.Contains(err.Error(), want) {
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
	if err := n.start("GPU-a::1", "gpucdi.dev/gpu=GPU-a"); err == nil || !strings.Contains(err.Error(), "replica GPU-a::1 was allocated without a limit of its compute time; delete the pod") {
		t.Errorf("error %v", err)
	}
	n.checkFault("")
}

// A server that does not work is replaced once no container uses it. Without containers it is not probed.
func TestServerOfReplicasReplaced(t *testing.T) {
	n := newReplicated(t)
	n.probe = errors.New("no response within 10s")
	n.settle(false)
	n.checkFault("")
	if err := n.start("GPU-a::0", "gpucdi.dev/replica=GPU-a::0-cbcbbfae"); err != nil {
		t.Fatal(err)
	}
	for _, settle := range []func(){func() {}, func() { n.settle(true) }} {
		settle()
		n.checkFault("calling CUDA through MPS: no response within 10s")
		n.checkFault("calling CUDA through MPS: no response within 10s")
		if len(n.shares) != 1 {
			t.Error("the server was replaced while a container uses it")
		}
	}
	n.settle(false)
	n.removal, n.modes = errors.New("no response within 10s"), nil
	for range 2 {
		n.checkFault("no response within 10s")
	}
	n.removal = nil
	n.checkFault("")
	if len(n.modes) > 0 {
		t.Errorf("compute modes %v set while the server was replaced", n.modes)
	}
	if len(n.shares) > 0 || !n.server {
		t.Errorf("the server was not replaced; shares %v", n.shares)
	}
	n.probe = nil
	n.settle(true)
	n.checkFault("")
}

// While the daemon does not respond, a restart of the driver does not give programs the whole GPU. While no daemon and
// so no server runs, no program can use the GPU.
func TestComputeModeKeptWithoutDaemon(t *testing.T) {
	n := newReplicated(t)
	n.checkFault("")
	for problem, want := range map[error]gpu.ComputeMode{
		errors.New("the MPS daemon hangs"): gpu.ComputeModeExclusiveProcess,
		mps.ErrNotRunning:                  gpu.ComputeModeProhibited,
	} {
		n.problem, n.mode = problem, gpu.ComputeModeDefault
		n.checkFault("the MPS daemon")
		if n.mode != want {
			t.Errorf("%v: compute mode %s, want %s", problem, n.mode, want)
		}
		n.problem = nil
		n.checkFault("")
		if n.mode != gpu.ComputeModeExclusiveProcess {
			t.Errorf("compute mode %s after the daemon has recovered", n.mode)
		}
	}
	// A daemon that does not respond does not keep the GPU from other pods when MPS is no longer configured.
	n.problem = errors.New("the MPS daemon hangs")
	n.ledger = allocator.Start(&allocator.Saved{Complete: true}, true, time.Now())
	n.share("")
	n.checkFault("")
	if n.limits.changed.has("GPU-a") || n.mode != gpu.ComputeModeDefault {
		t.Errorf("compute mode %s, changed GPUs %v", n.mode, n.limits.changed.all())
	}
}

// A container that cannot start because no server runs does not let another program have the whole GPU.
func TestFailedStartKeepsGPUProhibited(t *testing.T) {
	n := newReplicated(t)
	n.checkFault("")
	fails := func() {
		t.Helper()
		if err := n.start("GPU-a::1", "gpucdi.dev/replica=GPU-a::1-cbcbbfae"); err == nil {
			t.Error("the container starts")
		}
		if n.mode != gpu.ComputeModeProhibited {
			t.Errorf("compute mode %s", n.mode)
		}
	}
	n.server, n.problem = false, mps.ErrNotRunning
	fails()
	n.modes = nil
	fails()
	if len(n.modes) > 0 {
		t.Errorf("compute modes %v set without a daemon", n.modes)
	}
	n.problem, n.starts = nil, errors.New("the server has ended")
	fails()
	n.checkFault("the server has ended")
	if n.mode != gpu.ComputeModeProhibited {
		t.Errorf("compute mode %s after a check", n.mode)
	}
	n.starts = nil
	n.checkFault("")
	if n.mode != gpu.ComputeModeExclusiveProcess || !n.server {
		t.Errorf("compute mode %s, server %t", n.mode, n.server)
	}
}

// MPS gives no fault to a GPU that the driver cannot share through it, because that would hide the reason, and its
// compute mode is not changed, unless a container still uses it.
func TestUnenforceableComputeLimits(t *testing.T) {
	for name, share := range map[string]func(n *replicated){
		"replicas": func(n *replicated) { n.share(allocator.LimitMemoryAndCompute) },
		"claims": func(n *replicated) {
			shares := allocator.DefaultShares()
			shares.Compute = allocator.ComputeCeiling
			n.advertise(allocator.Policy{Mode: allocator.ModeDRA, Shares: shares, Rules: allocator.Rules{{Name: allocator.GPUResource, Share: allocator.ShareMemory}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := &replicated{ceiledNode: newCeiledNode(t), ledger: allocator.Start(&allocator.Saved{Complete: true}, true, time.Now())}
			n.inv = &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", MemoryBytes: 81 << 30, MemoryLimits: gpu.MemoryLimitsSupported}}}
			n.problem = mps.ErrNotRunning
			share(n)
			n.checkFault("the MPS daemon does not run")
			n.inv.GPUs[0].MemoryLimits = gpu.MemoryLimitsOldDriver
			share(n)
			n.checkFault("")
			if n.mode != gpu.ComputeModeDefault {
				t.Errorf("compute mode %s", n.mode)
			}
		})
	}
	n := newReplicated(t)
	if err := n.start("GPU-a::1", "gpucdi.dev/replica=GPU-a::1-cbcbbfae"); err != nil {
		t.Fatal(err)
	}
	n.inv.GPUs[0].MemoryLimits = gpu.MemoryLimitsOldDriver
	n.share(allocator.LimitMemoryAndCompute)
	n.settle(true)
	n.problem = mps.ErrNotRunning
	n.checkFault("the MPS daemon does not run")
	if n.mode != gpu.ComputeModeProhibited {
		t.Errorf("compute mode %s while a container uses the GPU", n.mode)
	}
}

// The end of the daemon is noticed immediately, not just with the next check.
func TestEndOfDaemon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newReplicated(t)
		n.events = make(chan struct{}) // of this test's bubble
		ctx, cancel := context.WithCancel(t.Context())
		var maintained sync.WaitGroup
		maintained.Go(func() { n.limits.maintain(ctx, func(map[string]gpu.Fault) {}) })
		time.Sleep(computeInterval + time.Second) // the first check
		synctest.Wait()
		for _, step := range []struct {
			problem error
			want    gpu.ComputeMode
		}{{mps.ErrNotRunning, gpu.ComputeModeProhibited}, {nil, gpu.ComputeModeExclusiveProcess}} {
			n.problem = step.problem
			n.events <- struct{}{}
			synctest.Wait()
			if n.mode != step.want {
				t.Errorf("compute mode %s, want %s", n.mode, step.want)
			}
		}
		cancel()
		maintained.Wait()
	})
}

// Faults remain while no driver worker runs. Only those of the daemon are new: the GPU is not the cause of others.
func TestMPSFaultsWithoutWorker(t *testing.T) {
	n := newReplicated(t)
	n.modeErr = driver.ErrNoWorker
	if faults := n.limits.check(t.Context(), nil); len(faults) > 0 {
		t.Errorf("faults %v", faults)
	}
	last := map[string]gpu.Fault{"GPU-a": mpsFault(errors.New("hangs"))}
	if faults := n.limits.check(t.Context(), last); !maps.Equal(faults, last) {
		t.Errorf("faults %v, want %v", faults, last)
	}
	n.problem = errors.New("the daemon hangs")
	if faults := n.limits.check(t.Context(), nil); !strings.Contains(faults["GPU-a"].Message, "the daemon hangs") {
		t.Errorf("faults %v, want that of the daemon", faults)
	}
}

// Before the ledger is known, and for a prepared claim whose record is lost, a server, its compute mode and specs are
// kept.
func TestMPSKeptAfterLostState(t *testing.T) {
	n := newCeiledNode(t)
	if err := n.prepare("a", 25); err != nil {
		t.Fatal(err)
	}
	n.records = nil
	kept := func() {
		t.Helper()
		n.limits.check(t.Context(), nil)
		n.check(gpu.ComputeModeExclusiveProcess, "a")
	}
	n.limits.gate.Restore(allocator.Claim{UID: "a", Devices: []string{"GPU-a"}})
	kept()
	if err := n.prepare("b", 50); err != nil {
		t.Fatal(err)
	}
	if err := n.unprepare("b"); err != nil {
		t.Fatal(err)
	}
	n.check(gpu.ComputeModeExclusiveProcess, "a")
	n.limits.gate.Unprepare("a")
	n.latest.offers = nil
	n.limits.check(t.Context(), nil)
	if n.mode != gpu.ComputeModeExclusiveProcess || !n.server {
		t.Errorf("compute mode %s, server %t", n.mode, n.server)
	}
	n.latest.offers = []*allocator.Resource{}
	n.limits.check(t.Context(), nil)
	n.check(gpu.ComputeModeDefault)
}

// A container whose replica cannot be limited does not prevent the replacement of the server.
func TestFailedStartDoesNotUseServer(t *testing.T) {
	n := newReplicated(t)
	n.problem = errors.New("no response")
	if err := n.start("GPU-a::1", "gpucdi.dev/replica=GPU-a::1-cbcbbfae"); err == nil {
		t.Fatal("no error")
	}
	n.latest.running.checkpoint.Holders = nil
	if n.limits.inUse("GPU-a") {
		t.Error("the server is in use")
	}
}

// Without API server access, pods cannot be checked.
func TestReplicasRequireAPIServer(t *testing.T) {
	a := New(Config{Node: host.NewRoot(t.TempDir()), CDIDir: t.TempDir()}, slog.New(slog.DiscardHandler))
	l := newLoop(a.collaborators(allocator.NewGate(time.Now), a.newComputeLimits(nil, nil), nil, newTriggers(nil)), newSnapshot())
	file, err := config.Parse([]byte("resources: [{name: nvidia.com/gpu, replicas: 2, limits: memory+compute, failRequestsGreaterThanOne: true}]"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.adopt(file); err == nil || !strings.Contains(err.Error(), "limits: memory+compute requires API server access") {
		t.Errorf("error %v", err)
	}
	l.followLabels = func() {}
	if err := l.adopt(file); err != nil {
		t.Error(err)
	}
}

// A daemon that hangs before a probe does not stop the checks.
func TestHangBeforeProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newReplicated(t)
		if err := n.start("GPU-a::1", "gpucdi.dev/replica=GPU-a::1-cbcbbfae"); err != nil {
			t.Fatal(err)
		}
		commands, cancel := context.WithTimeout(t.Context(), computeTimeout)
		defer cancel()
		n.hang = true
		if err := n.limits.probeServer(t.Context(), commands, "GPU-a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}
