package agent

import (
	"reflect"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/runtime"
	"github.com/gpucdi/gpucdi/status"
)

const (
	gpuNode = iota + 100
	otherNode
	capNode
)

func container(id, pod string, nodes ...uint64) runtime.Container {
	c := runtime.Container{ID: id, Name: "main", Pod: runtime.Pod{UID: "uid-" + pod, Namespace: "default", Name: pod}, Devices: map[uint64]bool{}}
	for _, n := range nodes {
		c.Devices[n] = true
	}
	return c
}

func TestUsage(t *testing.T) {
	privileged := container("p1", "privileged")
	privileged.Privileged = true
	cgroups := runtime.NewCgroups([]runtime.Container{
		container("a1", "a", gpuNode), container("b1", "b", gpuNode), container("c1", "idle", gpuNode), container("d1", "none", otherNode),
		{ID: "e1", Name: "docker", Devices: map[uint64]bool{gpuNode: true}}, privileged,
		container("f1", "part", gpuNode, capNode),
	})
	nodes := map[string][]uint64{"GPU-a": {gpuNode}, "GPU-b": {otherNode}, "MIG-a": {gpuNode, capNode}}
	whole := gpu.GPU{UUID: "GPU-a", MIG: gpu.MIGDisabled}
	partitioned := gpu.GPU{UUID: "GPU-a", MIG: gpu.MIGEnabled, MIGDevices: []gpu.MIGDevice{{UUID: "MIG-a"}}}
	cgroup := func(device, id string, memory uint64, utilization float64) gpu.CgroupUsage {
		return gpu.CgroupUsage{Device: device, Cgroup: "/kubepods/" + id, MemoryUsed: &memory, Utilization: utilization}
	}
	use := func(device, pod string, memory uint64, utilization float64) status.Usage {
		return status.Usage{Device: device, Namespace: "default", Pod: pod, Container: "main", MemoryUsed: &memory, Utilization: &utilization}
	}
	withoutMemory := func(u status.Usage) status.Usage { u.MemoryUsed = nil; return u }
	withoutUtilization := func(u status.Usage) status.Usage { u.Utilization = nil; return u }
	for name, tc := range map[string]struct {
		gpu      gpu.GPU
		measured gpu.Usage
		want     []status.Usage
	}{
		"shared": {whole, gpu.Usage{Utilization: true, Cgroups: []gpu.CgroupUsage{
			cgroup("GPU-a", "a1", 5, 0.25), cgroup("GPU-a", "a1/init", 2, 0.5), cgroup("GPU-a", "b1", 11, 0),
			cgroup("GPU-a", "p1", 1, 0.125),
			cgroup("GPU-a", "d1", 9, 1), cgroup("GPU-a", "e1", 9, 1), cgroup("GPU-a", "unknown", 9, 1), cgroup("GPU-a", "", 9, 1),
		}}, []status.Usage{use("GPU-a", "a", 7, 0.75), use("GPU-a", "b", 11, 0), use("GPU-a", "idle", 0, 0), use("GPU-a", "part", 0, 0),
			use("GPU-a", "privileged", 1, 0.125)}},
		"without the memory of processes": {whole, gpu.Usage{Utilization: true, Cgroups: []gpu.CgroupUsage{
			{Device: "GPU-a", Cgroup: "/kubepods/a1", Utilization: 0.5}}},
			[]status.Usage{withoutMemory(use("GPU-a", "a", 0, 0.5)), withoutMemory(use("GPU-a", "b", 0, 0)), withoutMemory(use("GPU-a", "idle", 0, 0)), withoutMemory(use("GPU-a", "part", 0, 0))}},
		"MIG device": {partitioned, gpu.Usage{Cgroups: []gpu.CgroupUsage{cgroup("MIG-a", "f1", 3, 0), cgroup("MIG-a", "a1", 9, 0)}},
			[]status.Usage{withoutUtilization(use("MIG-a", "part", 3, 0))}},
		"without device nodes": {gpu.GPU{UUID: "GPU-unknown"}, gpu.Usage{Cgroups: []gpu.CgroupUsage{cgroup("GPU-unknown", "a1", 3, 0)}}, []status.Usage{}},
	} {
		if got := usage(tc.gpu, tc.measured, cgroups, nodes); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: got %+v, want %+v", name, dereferenced(got), dereferenced(tc.want))
		}
	}
}

func dereferenced(all []status.Usage) (text [][3]any) {
	for _, u := range all {
		text = append(text, [3]any{u.Pod, value(u.MemoryUsed), value(u.Utilization)})
	}
	return text
}
