package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/mps"
	"github.com/gpucdi/gpucdi/runtime"
)

// ceiledNode is a node with a GPU that claims share through MPS, and fakes of MPS, the driver and the API server.
type ceiledNode struct {
	*testing.T
	limits  *computeLimits
	dir     string
	records []dra.Record

	shares  map[string]mps.Share // by name
	server  bool
	removed int // servers
	mode    gpu.ComputeMode
	pod     cluster.PodSecurity
	latest  *snapshot
	problem error             // of each call to MPS
	hang    bool              // Served returns only when its context ends
	starts  error             // of each start of the server
	removal error             // of each removal of the server
	modeErr error             // of each change of the compute mode
	modes   []gpu.ComputeMode // that were set
	probe   error
	events  chan struct{} // starts and ends of the daemon
}

func newCeiledNode(t *testing.T) *ceiledNode {
	n := &ceiledNode{T: t, dir: t.TempDir(), shares: map[string]mps.Share{}, mode: gpu.ComputeModeDefault, events: make(chan struct{}),
		pod: cluster.PodSecurity{UID: "pod-uid", HostUsers: true}}
	s := newSnapshot()
	n.latest = s
	s.offers, s.running = []*allocator.Resource{}, running{listed: true}
	s.known = &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a"}, {UUID: "GPU-b"}}}
	s.plan = &plan{resources: []*allocator.Resource{{Name: allocator.SliceOutlet, Devices: []allocator.Device{{ID: "GPU-a", Class: allocator.Ceiled}}}}}
	n.limits = &computeLimits{
		node: host.NewRoot("/"), specDir: filepath.Join(n.dir, "cdi"), control: n, settings: n, pods: n,
		gate: allocator.NewGate(time.Now), latest: func() *snapshot { return s }, claims: n,
		podName: func(context.Context, string) (string, string, error) { return "default", "pod", nil },
		started: map[string]time.Time{}, left: map[string]bool{}, released: map[string]bool{}, changed: newExclusiveGPUs(filepath.Join(n.dir, "state"), slog.New(slog.DiscardHandler)),
		probe: func(context.Context, string) error { return n.probe }, log: slog.New(slog.DiscardHandler),
		changing: make(chan struct{}, 1), probed: map[string]time.Time{}, failed: map[string]error{},
	}
	return n
}

func (n *ceiledNode) Ensure(_ context.Context, s mps.Share) error {
	if n.problem != nil {
		return n.problem
	}
	if n.starts != nil && !n.server {
		return n.starts
	}
	if n.mode != gpu.ComputeModeExclusiveProcess {
		n.Error("a share was created while programs could use the whole GPU")
	}
	n.shares[s.Name], n.server = s, true
	return os.MkdirAll(n.Directory(s), 0o755)
}

func (n *ceiledNode) EnsureServer(context.Context, string) error {
	err := cmp.Or(n.problem, n.starts)
	if err == nil {
		n.server = true
	}
	return err
}

func (n *ceiledNode) Namespaces(context.Context, string) ([]string, error) {
	return slices.Sorted(maps.Keys(n.shares)), n.problem
}

func (n *ceiledNode) Remove(_ context.Context, s mps.Share) error {
	delete(n.shares, s.Name)
	return n.problem
}

func (n *ceiledNode) Served(ctx context.Context, gpus []string) ([]string, error) {
	if n.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if !n.server || !slices.Contains(gpus, "GPU-a") {
		return nil, n.problem
	}
	return []string{"GPU-a"}, n.problem
}

func (n *ceiledNode) RemoveServer(context.Context, string) error {
	if n.removal != nil {
		return n.removal
	}
	if n.problem != nil && !errors.Is(n.problem, mps.ErrNotRunning) {
		return n.problem
	}
	if n.server {
		n.removed++
	}
	n.server = false
	clear(n.shares)
	return nil
}

func (n *ceiledNode) Watch(ctx context.Context, changed chan<- struct{}, _ *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.events:
			changed <- struct{}{}
		}
	}
}

func (n *ceiledNode) Directory(s mps.Share) string { return filepath.Join(n.dir, s.GPU, s.Name) }

func (n *ceiledNode) ComputeMode(context.Context, string) (gpu.ComputeMode, error) {
	return n.mode, nil
}

func (n *ceiledNode) SetComputeMode(_ context.Context, _ string, mode gpu.ComputeMode) error {
	saved := newExclusiveGPUs(n.limits.changed.dir, n.limits.log) // as after a crash
	if mode != gpu.ComputeModeDefault && !saved.has("GPU-a") {
		n.Error("the compute mode is changed before its change is saved")
	}
	if n.modeErr == nil {
		n.mode, n.modes = mode, append(n.modes, mode)
	}
	return n.modeErr
}

func (n *ceiledNode) PodSecurity(context.Context, string, string) (cluster.PodSecurity, error) {
	return n.pod, nil
}

func (n *ceiledNode) Records() []dra.Record { return n.records }

func (n *ceiledNode) IfPrepared(uid string, do func(dra.Record) error) error {
	for _, r := range n.records {
		if r.UID == uid {
			return do(r)
		}
	}
	return nil
}

// ledger returns a ledger in which the GPU is available to claims.
func (n *ceiledNode) ledger() allocator.Ledger {
	inv := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", MemoryBytes: 80 << 30, MemoryLimits: gpu.MemoryLimitsSupported}}}
	shares := allocator.DefaultShares()
	shares.Compute = allocator.ComputeCeiling
	policy := allocator.Policy{Mode: allocator.ModeDRA, Rules: allocator.Rules{{Name: allocator.GPUResource, Share: allocator.ShareMemory}}, Shares: shares}
	resources := allocator.Plan(inv, cdi.AgentKind, policy)
	now := time.Now()
	l, _ := allocator.Next(allocator.Start(nil, true, now), allocator.Observation{
		Wanted: allocator.Wants(resources, inv, func(string) bool { return true }), Present: allocator.PresentIn(inv),
		Checkpoint: &allocator.Checkpoint{Requested: now, Received: now}, Runtime: &allocator.Runtime{Requested: now, Received: now},
	}, now)
	return l
}

// prepare checks the pod of a claim with a part of the GPU, adds a record, and limits the claim.
func (n *ceiledNode) prepare(uid string, percentage int) error {
	if err := n.limits.checkPods(n.Context(), "default", []dra.Pod{{Name: "pod", UID: "pod-uid"}}); err != nil {
		return err
	}
	r := dra.Record{UID: uid, Namespace: "default", Name: uid, Devices: []dra.Device{{ID: "GPU-a", MPSPercentage: percentage}}}
	n.records = append(n.records, r)
	return n.limits.limit(n.Context(), r)
}

// unprepare removes the limit of a claim, and its record.
func (n *ceiledNode) unprepare(uid string) error {
	i := slices.IndexFunc(n.records, func(r dra.Record) bool { return r.UID == uid })
	err := n.limits.release(n.Context(), n.records[i])
	n.records = slices.Delete(slices.Clone(n.records), i, i+1)
	return err
}

// maintain makes a check, which must find no fault.
func (n *ceiledNode) maintain() {
	n.Helper()
	if faults := n.limits.check(n.Context(), nil); len(faults) > 0 {
		n.Errorf("faults %v", faults)
	}
}

// check checks the namespaces, the CDI specs, the compute mode, and whether the server runs.
func (n *ceiledNode) check(mode gpu.ComputeMode, uids ...string) {
	n.Helper()
	var specs []string
	for _, uid := range uids {
		specs = append(specs, "gpucdi.dev-claim-"+uid+".json")
	}
	names, _ := host.Names(n.limits.specDir, 100)
	slices.Sort(names)
	if got := slices.Sorted(maps.Keys(n.shares)); !slices.Equal(got, uids) || !slices.Equal(names, specs) || n.mode != mode || n.server != (len(uids) > 0) {
		n.Errorf("namespaces %v, specs %v, compute mode %s, server %t; want %v, %s", got, names, n.mode, n.server, uids, mode)
	}
}

func TestComputeLimits(t *testing.T) {
	n := newCeiledNode(t)
	if err := errors.Join(n.prepare("a", 25), n.prepare("b", 50)); err != nil {
		t.Fatal(err)
	}
	n.check(gpu.ComputeModeExclusiveProcess, "a", "b")
	if got := n.shares["b"]; got != (mps.Share{GPU: "GPU-a", Name: "b", Percentage: 50}) {
		t.Errorf("share %+v", got)
	}
	text, err := os.ReadFile(filepath.Join(n.limits.specDir, "gpucdi.dev-claim-a.json"))
	if err != nil || !strings.Contains(string(text), "CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps") || !strings.Contains(string(text), filepath.Join(n.dir, "GPU-a", "a")) {
		t.Errorf("spec %s, error %v", text, err)
	}
	if err := n.unprepare("a"); err != nil {
		t.Error(err)
	}
	n.check(gpu.ComputeModeExclusiveProcess, "b")
	if err := n.unprepare("b"); err != nil {
		t.Error(err)
	}
	n.maintain()
	n.check(gpu.ComputeModeDefault)
}

// After a forced deletion, the kubelet can unprepare a claim before its containers end. Until the ledger has the GPU as
// unused, their programs do not get all of it. Then another claim can have all of it, and its memory.
func TestCeilingOutlivesClaim(t *testing.T) {
	n := newCeiledNode(t)
	n.limits.gate.Advertise(n.ledger())
	claim := allocator.Claim{UID: "a", Devices: []string{"GPU-a"}, Amounts: map[string]allocator.Amount{"GPU-a": {Cores: 25, Memory: 1 << 30}}}
	if err := errors.Join(n.limits.gate.Prepare(claim), n.prepare("a", 25), n.unprepare("a")); err != nil {
		t.Fatal(err)
	}
	n.limits.gate.Unprepare("a")
	kept := func(server bool, mode gpu.ComputeMode) {
		t.Helper()
		n.limits.check(t.Context(), nil)
		if len(n.shares) > 0 || n.mode != mode || n.server != server {
			t.Errorf("shares %v, compute mode %s, server %t", n.shares, n.mode, n.server)
		}
	}
	kept(true, gpu.ComputeModeExclusiveProcess)
	n.server, n.mode = false, gpu.ComputeModeDefault // the daemon and the driver were restarted
	kept(true, gpu.ComputeModeExclusiveProcess)
	n.server, n.problem = false, mps.ErrNotRunning
	kept(false, gpu.ComputeModeProhibited)
	n.problem, n.limits.failed["GPU-a"] = nil, errors.New("hangs")
	kept(true, gpu.ComputeModeExclusiveProcess)
	if f := n.limits.check(t.Context(), nil)["GPU-a"]; !strings.Contains(f.Message, "hangs") {
		t.Errorf("fault %+v while the server may still be used", f)
	}

	n.limits.gate = allocator.NewGate(time.Now)
	n.limits.gate.Advertise(n.ledger())
	if err := n.limits.limit(t.Context(), dra.Record{UID: "b", Devices: []dra.Device{{ID: "GPU-a"}}}); err != nil {
		t.Error(err)
	}
	n.check(gpu.ComputeModeDefault)
}

// The ledger may not know a container of an ended claim, if its state was lost or the container runtime was absent. The
// server remains until the running containers are listed without it.
func TestCeilingOutlivesLedger(t *testing.T) {
	n := newCeiledNode(t)
	if err := errors.Join(n.prepare("a", 25), n.unprepare("a")); err != nil {
		t.Fatal(err)
	}
	client := func(gpu string, pid int) runtime.Container {
		return runtime.Container{PID: pid, Sources: []string{"/proc", n.Directory(mps.Share{GPU: gpu, Name: "a"})}}
	}
	running := &n.latest.running
	running.listed = false
	n.maintain()
	running.listed, running.containers = true, []runtime.Container{client("GPU-a", 0)}
	n.maintain()
	if !n.server || n.mode != gpu.ComputeModeExclusiveProcess {
		t.Errorf("server %t, compute mode %s while a client runs", n.server, n.mode)
	}
	running.containers = []runtime.Container{client("GPU-b", 0), client("GPU-a", 1<<30)} // the second one has ended
	n.maintain()
	n.check(gpu.ComputeModeDefault)
}

// A claim for all of a GPU gets it only once the server of earlier claims has ended, which would use memory of the claim.
func TestServerEndsBeforeWholeGPU(t *testing.T) {
	n := newCeiledNode(t)
	n.limits.gate.Advertise(n.ledger())
	if err := errors.Join(n.prepare("a", 25), n.unprepare("a"), n.limits.gate.Prepare(allocator.Claim{UID: "b", Devices: []string{"GPU-a"}})); err != nil {
		t.Fatal(err)
	}
	n.removal = errors.New("no response")
	whole := dra.Record{UID: "b", Devices: []dra.Device{{ID: "GPU-a"}}}
	for range 2 {
		if err := n.limits.limit(t.Context(), whole); err == nil || !strings.Contains(err.Error(), "no response") {
			t.Errorf("error %v", err)
		}
	}
	n.removal = nil
	n.maintain()
	n.check(gpu.ComputeModeDefault)
}

// A server may hang after the programs of its last claim were killed. The next claim gets another one, unless a container
// of the earlier claim may still use it.
func TestServerReplacedForNextClaim(t *testing.T) {
	for _, used := range []bool{false, true} {
		n := newCeiledNode(t)
		n.limits.gate.Advertise(n.ledger())
		part := map[string]allocator.Amount{"GPU-a": {Cores: 25, Memory: 1 << 30}}
		prepare := func(uid string) {
			t.Helper()
			if err := errors.Join(n.limits.gate.Prepare(allocator.Claim{UID: uid, Devices: []string{"GPU-a"}, Amounts: part}), n.prepare(uid, 25)); err != nil {
				t.Fatal(err)
			}
		}
		prepare("a")
		if err := n.unprepare("a"); err != nil {
			t.Fatal(err)
		}
		n.limits.gate.Unprepare("a")
		if !used {
			n.limits.gate = allocator.NewGate(time.Now)
			n.limits.gate.Advertise(n.ledger())
		}
		prepare("b")
		n.maintain() // does not end the server of the claim
		n.check(gpu.ComputeModeExclusiveProcess, "b")
		if replaced := n.removed == 1; n.removed > 1 || replaced == used {
			t.Errorf("used %t: the server was replaced %d times", used, n.removed)
		}
	}
}

// The server of a claim is not replaced when another claim ends. If the last two claims end at the same time, the next one
// gets another server.
func TestServerKeptForOtherClaims(t *testing.T) {
	n := newCeiledNode(t)
	n.limits.gate.Advertise(n.ledger())
	if err := errors.Join(n.prepare("a", 25), n.prepare("b", 25), n.unprepare("a")); err != nil {
		t.Fatal(err)
	}
	n.maintain()
	if err := n.prepare("c", 25); err != nil || n.removed > 0 {
		t.Errorf("%d servers removed, error %v", n.removed, err)
	}
	for _, r := range n.records {
		if err := n.limits.release(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	n.records = nil
	if err := n.prepare("d", 25); err != nil || n.removed != 1 {
		t.Errorf("%d servers removed, error %v", n.removed, err)
	}
}

// Without a daemon, the compute mode of an unused GPU is reset, although the config shares it.
func TestUnusedGPUWithoutDaemon(t *testing.T) {
	n := newCeiledNode(t)
	if err := n.prepare("a", 25); err != nil {
		t.Fatal(err)
	}
	n.server, n.problem = false, mps.ErrNotRunning
	n.limits.check(t.Context(), nil)
	if n.mode != gpu.ComputeModeProhibited {
		t.Errorf("compute mode %s while a claim uses the GPU", n.mode)
	}
	n.records, n.shares = nil, map[string]mps.Share{}
	n.limits.check(t.Context(), nil)
	n.check(gpu.ComputeModeDefault)
}

// A claim is refused if a process of its pod may be root on the node, because root could remove the limit.
func TestRootIsNotLimited(t *testing.T) {
	n := newCeiledNode(t)
	n.pod.RootContainers = []string{"main"}
	if err := n.prepare("a", 25); err == nil || !strings.Contains(err.Error(), `containers ["main"] of pod default/pod may run as root`) {
		t.Errorf("error %v", err)
	}
	n.pod.HostUsers = false
	if err := n.prepare("b", 25); err != nil {
		t.Error(err)
	}
}

// The limit of a claim is restored after a restart of the daemon or the driver, and after the CDI directory was
// emptied. What belongs to no claim is removed.
func TestComputeLimitsRestored(t *testing.T) {
	n := newCeiledNode(t)
	if err := n.prepare("a", 25); err != nil {
		t.Fatal(err)
	}
	clear(n.shares)
	n.server, n.mode = false, gpu.ComputeModeDefault
	if err := os.RemoveAll(n.limits.specDir); err != nil {
		t.Fatal(err)
	}
	n.maintain()
	n.check(gpu.ComputeModeExclusiveProcess, "a")
	n.records = nil // a claim was unprepared, but its limit could not be removed
	n.maintain()
	n.check(gpu.ComputeModeDefault)
}

// A GPU that claims share through MPS has a fault while the MPS daemon does not run or respond, even without claims, or
// while its server does not work, and recovers.
func TestMPSFaults(t *testing.T) {
	n := newCeiledNode(t)
	fault := func(want string) {
		t.Helper()
		f := n.limits.check(t.Context(), nil)["GPU-a"]
		if want == "" && !f.None() || want != "" && (f.Code != gpu.FaultMPS || !strings.Contains(f.Message, want)) {
			t.Errorf("fault %+v, want %q", f, want)
		}
	}
	n.problem = mps.ErrNotRunning
	fault("the MPS daemon does not run")
	n.problem = nil
	fault("")
	if err := n.prepare("a", 25); err != nil {
		t.Fatal(err)
	}
	n.probe = errors.New("no response within 10s")
	fault("calling CUDA through MPS: no response within 10s; the GPU recovers when a later call succeeds, or the pods that share it have ended")
	if err := n.unprepare("a"); err != nil {
		t.Error(err)
	}
	fault("")
	if err := n.prepare("b", 25); err != nil {
		t.Fatal(err)
	}
	n.probe = nil
	fault("")
	n.probe = errors.New("hangs again")
	fault("") // the next probe is due in a minute
	// The daemon does not respond at the end of the claim. The agent ends the server later.
	n.problem = errors.New("no response")
	if err := n.unprepare("b"); err == nil {
		t.Error("no error")
	}
	fault("no response")
	n.problem = nil
	fault("")
	n.check(gpu.ComputeModeDefault)
}

// A claim is refused if another pod now has the name of its pod, because the kubelet would not prepare the claim again
// for that pod.
func TestReplacedPodIsNotLimited(t *testing.T) {
	n := newCeiledNode(t)
	n.pod.UID = "another-uid"
	if err := n.prepare("a", 25); err == nil || !strings.Contains(err.Error(), "pod default/pod was replaced") {
		t.Errorf("error %v", err)
	}
}

// What a failure after the end of the last claim leaves behind is removed by a later check, even if the config no longer
// shares the GPU through MPS. The compute mode is reset even if MPS does not respond.
func TestComputeLimitsResetLater(t *testing.T) {
	for name, fail := range map[string]func(n *ceiledNode, err error){
		"MPS":          func(n *ceiledNode, err error) { n.problem = err },
		"compute mode": func(n *ceiledNode, err error) { n.modeErr = err },
	} {
		t.Run(name, func(t *testing.T) {
			n := newCeiledNode(t)
			if err := n.prepare("a", 25); err != nil {
				t.Fatal(err)
			}
			fail(n, errors.New("no response"))
			if err := n.unprepare("a"); (err == nil) != (n.problem == nil) {
				t.Errorf("error %v", err)
			}
			n.limits.latest().plan.resources = nil
			n.limits.check(t.Context(), nil)
			if (n.mode == gpu.ComputeModeDefault) != (n.modeErr == nil) {
				t.Errorf("compute mode %s", n.mode)
			}
			fail(n, nil)
			n.maintain()
			n.check(gpu.ComputeModeDefault)
		})
	}
}

// A claim does not wait longer than its deadline for a check of a daemon that does not respond.
func TestComputeLimitsWaitEnds(t *testing.T) {
	n := newCeiledNode(t)
	n.limits.changing <- struct{}{}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("deadline"))
	r := dra.Record{UID: "a", Namespace: "default", Devices: []dra.Device{{ID: "GPU-a", MPSPercentage: 25}}}
	if err := n.limits.limit(ctx, r); err == nil || !strings.Contains(err.Error(), "waiting for another command of MPS: deadline") {
		t.Errorf("error %v", err)
	}
	whole := dra.Record{UID: "b", Namespace: "default", Devices: []dra.Device{{ID: "GPU-b"}}}
	if err := n.limits.limit(ctx, whole); err != nil {
		t.Errorf("a claim without MPS waits: %v", err)
	}
}

func TestMPSPercentage(t *testing.T) {
	n := newCeiledNode(t)
	quarter := allocator.Amount{Cores: 25, Memory: 1 << 30}
	if got := n.limits.percentage("GPU-a", quarter, 0, 100); got != 0 {
		t.Errorf("%d for a GPU that is not advertised", got)
	}
	n.limits.gate.Advertise(n.ledger())
	for _, tc := range []struct {
		amount                 allocator.Amount
		ceiling, maximum, want int
	}{
		{quarter, 0, 100, 25}, {quarter, 60, 100, 60}, {quarter, 60, 50, 50}, {quarter, 60, 10, 25}, {quarter, 20, 10, 20}, {quarter, 0, 10, 25},
		{allocator.Amount{}, 0, 100, 0}, {allocator.Amount{Cores: 100, Memory: 1 << 30}, 0, 100, 0},
	} {
		if got := n.limits.percentage("GPU-a", tc.amount, tc.ceiling, tc.maximum); got != tc.want {
			t.Errorf("%+v with ceiling %d of at most %d: %d, want %d", tc.amount, tc.ceiling, tc.maximum, got, tc.want)
		}
	}
}
