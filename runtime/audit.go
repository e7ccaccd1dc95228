package runtime

import (
	"cmp"
	"slices"
)

// Audit is the difference between the GPUs of running containers and the GPUs allocated to them.
type Audit struct {
	// Foreign has containers with GPUs that were not allocated to them.
	Foreign []Use
	// Lacking has containers that lack GPUs allocated to them via CDI.
	Lacking []Use
	// Privileged has the privileged containers with GPUs. They are not compared with their allocations, because they can
	// use all devices of the node.
	Privileged []Container
}

// Use is a container and the GPUs and MIG devices it has or lacks, by UUID, sorted.
type Use struct {
	Container
	GPUs []string
}

// Allocations returns the devices allocated to a container of a pod, and the subset that the runtime injects by CDI
// device names. The others may be injected by a hook, which leaves no trace in a Container.
type Allocations func(podUID, namespace, pod, container string) (allocated, viaCDI []string)

// NewAudit compares the devices of running containers with their allocations. nodes has the device numbers of the
// device nodes of each GPU and MIG device, by UUID; other devices are ignored. The result is sorted by the names of the
// containers, since runtimes list them in any order.
func NewAudit(running []Container, allocations Allocations, nodes map[string][]uint64) Audit {
	var a Audit
	running = slices.SortedFunc(slices.Values(running), func(a, b Container) int {
		return cmp.Or(cmp.Compare(a.String(), b.String()), cmp.Compare(a.ID, b.ID))
	})
	for _, c := range running {
		present := c.DevicesOf(nodes)
		if c.Privileged {
			if len(present) > 0 {
				a.Privileged = append(a.Privileged, c)
			}
			continue
		}
		var allocated, viaCDI []string
		if c.Pod.UID != "" {
			allocated, viaCDI = allocations(c.Pod.UID, c.Pod.Namespace, c.Pod.Name, c.Name)
		}
		if foreign := without(present, allocated); len(foreign) > 0 {
			a.Foreign = append(a.Foreign, Use{c, foreign})
		}
		lacking := slices.DeleteFunc(without(viaCDI, present), func(uuid string) bool { return nodes[uuid] == nil })
		if len(lacking) > 0 {
			a.Lacking = append(a.Lacking, Use{c, lacking})
		}
	}
	return a
}

// DevicesOf returns the UUIDs of the GPUs and MIG devices whose device nodes are all in the container, sorted. nodes is
// as for NewAudit.
func (c Container) DevicesOf(nodes map[string][]uint64) (uuids []string) {
	for uuid, numbers := range nodes {
		if !slices.ContainsFunc(numbers, func(n uint64) bool { return !c.Devices[n] }) {
			uuids = append(uuids, uuid)
		}
	}
	slices.Sort(uuids)
	return uuids
}

// without returns a copy of all without the elements of excluded.
func without(all, excluded []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(uuid string) bool { return slices.Contains(excluded, uuid) })
}
