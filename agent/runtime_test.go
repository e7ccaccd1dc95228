package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/runtime"
)

// newAuditedLoop returns a loop with two GPUs. GPU-0 is used by a Docker container; GPU-1 is allocated to a pod
// whose container lacks it.
func newAuditedLoop() *loop {
	l := &loop{snapshot: *newSnapshot()}
	node := func(minor int64) []cdi.DeviceNode {
		return []cdi.DeviceNode{{Path: "/dev/nvidia", Major: 195, Minor: minor}}
	}
	l.plan = &plan{inventory: &gpu.Inventory{}, parts: cdi.Parts{GPUs: map[string][]cdi.DeviceNode{"GPU-0": node(0), "GPU-1": node(1)}}}
	l.running = running{
		listed: true,
		containers: []runtime.Container{
			{Namespace: "moby", ID: "docker", Devices: map[uint64]bool{unix.Mkdev(195, 0): true}},
			{Namespace: "k8s.io", ID: "pod", Name: "main", Pod: runtime.Pod{UID: "uid", Namespace: "default", Name: "pod"}},
		},
		checkpoint: kubelet.Checkpoint{Holders: []kubelet.Holder{{PodUID: "uid", Container: "main", Resource: "nvidia.com/gpu", Device: "GPU-1::3", CDI: []string{"gpucdi.dev/gpu=GPU-1"}}}},
	}
	l.audit()
	return l
}

func TestAuditAgainstCheckpoint(t *testing.T) {
	l := newAuditedLoop()
	s := containersStatus(l.audited, nil)
	if len(s.Foreign) != 1 || !slices.Equal(s.Foreign[0].GPUs, []string{"GPU-0"}) || s.Foreign[0].Name != "container docker (containerd namespace moby)" {
		t.Errorf("foreign: %+v", s.Foreign)
	}
	if len(s.Lacking) != 1 || !slices.Equal(s.Lacking[0].GPUs, []string{"GPU-1"}) || s.Lacking[0].Name != "default/pod/main" {
		t.Errorf("lacking: %+v", s.Lacking)
	}

	l.plan = &plan{inventory: &gpu.Inventory{}} // while the driver does not respond
	l.audit()
	if len(l.audited.Foreign) != 1 || len(l.audited.Lacking) != 1 {
		t.Error("the audit was dropped while the driver did not respond")
	}
}

// An excluded GPU may be used outside Kubernetes.
func TestAuditIgnoresExcludedGPUs(t *testing.T) {
	l := newAuditedLoop()
	l.plan.inventory = &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-0"}, {UUID: "GPU-1", Index: 1}}}
	l.config.Resources = allocator.Rules{{Select: allocator.Selector{Index: []int{0}}, Exclude: true}}
	l.audit()
	if len(l.audited.Foreign) > 0 || len(l.audited.Lacking) != 1 {
		t.Errorf("got %+v, want no foreign container and one that lacks its GPU", l.audited)
	}
}

func TestRespectForeignContainers(t *testing.T) {
	l := newAuditedLoop()
	if foreign := l.foreign(partResolver{inv: &gpu.Inventory{}}); len(foreign) > 0 {
		t.Errorf("by default: got %v, want none", foreign)
	}
	l.config.Allocation.RespectForeignContainers = true
	l.audited.Foreign = append(l.audited.Foreign, runtime.Use{Container: runtime.Container{Pod: runtime.Pod{UID: "uid"}}, GPUs: []string{"GPU-1"}})
	want := []allocator.Foreign{{
		Device:    allocator.Part{GPU: "GPU-0", Extent: allocator.ExtentWhole},
		Container: "container docker (containerd namespace moby)",
	}}
	if foreign := l.foreign(partResolver{inv: &gpu.Inventory{}}); !slices.Equal(foreign, want) {
		t.Errorf("got %v, want %v", foreign, want)
	}
}

// Until the runtime has listed its containers once, any GPU may be in use outside Kubernetes. Until the compute mode that
// MPS requires is reset, programs without MPS would fail.
func TestNoGPUBecomesAvailableTooEarly(t *testing.T) {
	exclusive := false
	l := &loop{snapshot: *newSnapshot(), collaborators: collaborators{gate: allocator.NewGate(time.Now), exclusive: func(uuid string) bool { return exclusive && uuid == "GPU-0" }}}
	inv := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-0", PCIBusID: "0000:01:00.0"}}}
	l.plan = &plan{inventory: inv, verified: map[string]bool{"gpucdi.dev/gpu=GPU-0": true},
		resources: allocator.Plan(inv, cdi.AgentKind, allocator.Policy{MIG: allocator.MIGNone})}
	for _, tc := range []struct{ respect, listed, exclusive, ready bool }{
		{false, false, false, true}, {true, false, false, false}, {true, true, false, true}, {false, true, true, false},
	} {
		l.config.Allocation.RespectForeignContainers, l.running.listed, exclusive = tc.respect, tc.listed, tc.exclusive
		wanted := l.observation().Wanted
		if len(wanted) != 1 || wanted[0].Ready != tc.ready {
			t.Errorf("%+v: got %+v", tc, wanted)
		}
	}
}

func TestNewUses(t *testing.T) {
	use := func(id string, gpus ...string) runtime.Use {
		return runtime.Use{Container: runtime.Container{ID: id}, GPUs: gpus}
	}
	got := newUses([]runtime.Use{use("a", "GPU-0"), use("b", "GPU-0")}, []runtime.Use{use("a", "GPU-0"), use("b", "GPU-1"), use("c", "GPU-0")})
	if len(got) != 2 || got[0].ID != "b" || got[1].ID != "c" {
		t.Errorf("got %v", got)
	}
	restarted := func(id string) runtime.Use {
		return runtime.Use{Container: runtime.Container{ID: id, Name: "main", Pod: runtime.Pod{UID: "uid"}}, GPUs: []string{"GPU-0"}}
	}
	if got := newUses([]runtime.Use{restarted("a")}, []runtime.Use{restarted("b")}); len(got) > 0 {
		t.Errorf("got %v for a container that restarted", got)
	}
}

// Containers keep running while their runtime is stopped or hangs, so the last list is kept until their processes end. Those whose
// process is not visible stay in it.
func TestContainersOutliveTheirRuntime(t *testing.T) {
	dir := t.TempDir()
	node := host.NewRoot(dir)
	a := New(Config{Node: node, KubeletDir: dir}, slog.New(slog.DiscardHandler))
	for _, pid := range []string{"1", "2"} {
		if err := os.MkdirAll(filepath.Join(dir, "proc", pid), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	lists := runningLists{}
	lists.put(node, "/run/containerd/containerd.sock", []runtime.Container{{ID: "a", PID: 1}, {ID: "b", PID: 2}})
	lists.put(node, "/run/crio/crio.sock", []runtime.Container{{ID: "hidden", PID: 3}, {ID: "unknown"}})
	lists.put(node, "/run/k0s/containerd.sock", []runtime.Container{{ID: "c", PID: 1}})
	var now running
	expect := func(sockets int, want ...string) {
		t.Helper()
		a.readRunning(t.Context(), &now, lists)
		var got []string
		for _, c := range now.containers {
			got = append(got, c.ID)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) || now.listed || now.err == nil || len(lists) != sockets {
			t.Errorf("got %q of %d runtimes, want %q of %d; %+v", got, len(lists), want, sockets, now)
		}
	}
	expect(3, "a", "b", "c", "hidden", "unknown")
	if err := os.Remove(filepath.Join(dir, "proc", "1")); err != nil {
		t.Fatal(err)
	}
	expect(2, "b", "hidden", "unknown")
}
