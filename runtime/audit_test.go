package runtime_test

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/runtime"
)

// A GPU has one device node; a MIG device has that of its GPU and two capability nodes.
var nodes = map[string][]uint64{
	"GPU-0": {unix.Mkdev(195, 0)},
	"GPU-1": {unix.Mkdev(195, 1)},
	"MIG-a": {unix.Mkdev(195, 2), unix.Mkdev(235, 3), unix.Mkdev(235, 4)},
	"MIG-b": {unix.Mkdev(195, 2), unix.Mkdev(235, 12), unix.Mkdev(235, 13)},
}

func with(devices ...string) runtime.Container {
	c := runtime.Container{ID: "id", Devices: map[uint64]bool{unix.Mkdev(195, 255): true}}
	for _, uuid := range devices {
		for _, n := range nodes[uuid] {
			c.Devices[n] = true
		}
	}
	return c
}

func TestAudit(t *testing.T) {
	inPod := func(c runtime.Container) runtime.Container {
		c.Name, c.Pod = "main", runtime.Pod{UID: "uid", Namespace: "default", Name: "pod"}
		return c
	}
	privileged := with("GPU-0", "GPU-1", "MIG-a", "MIG-b")
	privileged.Privileged = true
	privilegedNoNodes := with()
	privilegedNoNodes.Privileged = true
	parentOnly := with()
	parentOnly.Devices[unix.Mkdev(195, 2)] = true
	for _, tc := range []struct {
		name             string
		container        runtime.Container
		allocated        []string
		foreign, lacking []string
		privileged       bool
	}{
		{"pod with its GPU", inPod(with("GPU-0")), []string{"GPU-0"}, nil, nil, false},
		{"pod with its MIG device", inPod(with("MIG-a")), []string{"MIG-a"}, nil, nil, false},
		{"pod without GPUs", inPod(with()), nil, nil, nil, false},
		{"pod started without CDI", inPod(with()), []string{"GPU-0", "GPU-1"}, nil, []string{"GPU-0", "GPU-1"}, false},
		{"pod without the capability nodes of its MIG device", inPod(parentOnly), []string{"MIG-a"}, nil, []string{"MIG-a"}, false},
		{"pod with another GPU", inPod(with("GPU-1")), []string{"GPU-0"}, []string{"GPU-1"}, []string{"GPU-0"}, false},
		{"pod with an unknown GPU", inPod(with()), []string{"GPU-gone"}, nil, nil, false},
		{"container outside Kubernetes", with("GPU-1", "MIG-b"), []string{"GPU-1"}, []string{"GPU-1", "MIG-b"}, nil, false},
		{"container outside Kubernetes with only the node of a partitioned GPU", parentOnly, nil, nil, nil, false},
		{"privileged pod", inPod(privileged), nil, nil, nil, true},
		{"privileged container outside Kubernetes", privileged, nil, nil, nil, true},
		{"privileged container without device nodes", privilegedNoNodes, nil, nil, nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := runtime.NewAudit([]runtime.Container{tc.container}, func(podUID, _, _, _ string) (allocated, viaCDI []string) {
				if podUID == "" {
					t.Error("allocations called without a pod UID")
				}
				return tc.allocated, tc.allocated
			}, nodes)
			gpus := func(uses []runtime.Use) (all []string) {
				for _, use := range uses {
					all = append(all, use.GPUs...)
				}
				return all
			}
			if !slices.Equal(gpus(a.Foreign), tc.foreign) || !slices.Equal(gpus(a.Lacking), tc.lacking) ||
				len(a.Privileged) > 0 != tc.privileged {
				t.Errorf("got %+v", a)
			}
		})
	}
}

// A device that NVIDIA's plugin allocated, and a hook injects, is neither foreign nor lacking.
func TestAuditOfDevicesWithoutCDI(t *testing.T) {
	allocations := func(_, _, _, _ string) (allocated, viaCDI []string) { return []string{"GPU-0"}, nil }
	for _, c := range []runtime.Container{with(), with("GPU-0")} {
		c.Pod.UID = "uid"
		if a := runtime.NewAudit([]runtime.Container{c}, allocations, nodes); len(a.Foreign)+len(a.Lacking) > 0 {
			t.Errorf("got %+v", a)
		}
	}
}

func TestContainerString(t *testing.T) {
	for want, c := range map[string]runtime.Container{
		"default/pod/main": {Namespace: "k8s.io", ID: "1234", Name: "main", Pod: runtime.Pod{UID: "u", Namespace: "default", Name: "pod"}},
		"container web (containerd namespace default)":       {Namespace: "default", ID: "0123456789abcdef", Name: "web"},
		"container 0123456789ab (containerd namespace moby)": {Namespace: "moby", ID: "0123456789abcdef"},
		"container short": {ID: "short"},
	} {
		if c.String() != want {
			t.Errorf("got %s, want %s", c, want)
		}
	}
}

func TestAuditIsSorted(t *testing.T) {
	named := func(id, name string) runtime.Container {
		c := with("GPU-0")
		c.ID, c.Name = id, name
		return c
	}
	running := []runtime.Container{named("3", "b"), named("2", "a"), named("1", "b")}
	var ids []string
	for _, use := range runtime.NewAudit(running, nil, nodes).Foreign {
		ids = append(ids, use.ID)
	}
	if want := []string{"2", "1", "3"}; !slices.Equal(ids, want) || running[0].ID != "3" {
		t.Errorf("got %v, want %v, and the argument unchanged", ids, want)
	}
}
