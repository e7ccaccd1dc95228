package agent

import (
	"cmp"
	"slices"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/runtime"
	"github.com/gpucdi/gpucdi/status"
)

// measure adds the telemetry to GPUs, with the processes summed by container.
func (s *snapshot) measure(gpus []status.GPU, telemetry driver.Telemetry) {
	nodes := s.plan.parts.DeviceNumbers()
	cgroups := runtime.NewCgroups(s.running.containers)
	for i, g := range gpus {
		t := telemetry[g.UUID]
		if t.Usage != nil {
			gpus[i].Usage = usage(g.GPU, *t.Usage, cgroups, nodes)
		}
		t.Usage = nil // lists cgroups, which Usage has mapped to containers
		gpus[i].Telemetry = t
	}
}

// usage returns the usage of a GPU by each container that belongs to a pod. It is 0 for a container that has the GPU's
// device nodes, but no process on it. A process is ignored if its container lacks the nodes of its device: its PID may
// be from another PID namespace, so that it identifies an unrelated process. Processes of privileged containers are
// always counted.
func usage(g gpu.GPU, measured gpu.Usage, cgroups runtime.Cgroups, nodes map[string][]uint64) []status.Usage {
	sums := map[status.Usage]*status.Usage{} // keyed by a Usage without measurements
	sum := func(c runtime.Container, device string) *status.Usage {
		key := status.Usage{Device: device, Namespace: c.Pod.Namespace, Pod: c.Pod.Name, Container: c.Name}
		if sums[key] == nil {
			sums[key] = new(key)
		}
		return sums[key]
	}
	nodes = nodesOf(g, nodes)
	idle := gpu.CgroupUsage{MemoryUsed: new(uint64)}
	if slices.ContainsFunc(measured.Cgroups, func(u gpu.CgroupUsage) bool { return u.MemoryUsed == nil }) {
		idle.MemoryUsed = nil // not supported
	}
	for _, c := range cgroups {
		if c.Pod.UID != "" && !c.Privileged {
			for _, device := range c.DevicesOf(nodes) {
				add(sum(c, device), idle, measured.Utilization)
			}
		}
	}
	for _, u := range measured.Cgroups {
		c, found := cgroups.Container(u.Cgroup)
		if found && c.Pod.UID != "" && (c.Privileged || slices.Contains(c.DevicesOf(nodes), u.Device)) {
			add(sum(c, u.Device), u, measured.Utilization)
		}
	}
	all := make([]status.Usage, 0, len(sums))
	for _, u := range sums {
		all = append(all, *u)
	}
	slices.SortFunc(all, func(a, b status.Usage) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container))
	})
	return all
}

func add(sum *status.Usage, u gpu.CgroupUsage, utilization bool) {
	if u.MemoryUsed != nil {
		sum.MemoryUsed = new(*u.MemoryUsed + value(sum.MemoryUsed))
	}
	if utilization {
		sum.Utilization = new(min(u.Utilization+value(sum.Utilization), 1))
	}
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// nodesOf returns the device numbers of a GPU, or of its MIG devices if it is in MIG mode.
func nodesOf(g gpu.GPU, nodes map[string][]uint64) map[string][]uint64 {
	of := map[string][]uint64{}
	if g.MIG != gpu.MIGEnabled && nodes[g.UUID] != nil {
		of[g.UUID] = nodes[g.UUID]
	}
	for _, m := range g.MIGDevices {
		if nodes[m.UUID] != nil {
			of[m.UUID] = nodes[m.UUID]
		}
	}
	return of
}
