package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/mps"
	"github.com/gpucdi/gpucdi/runtime"
)

// preStart limits the compute time of a pod's replicas of a resource, before a container starts. It is called for
// kubelet.Config.PreStart. The container has the CDI devices of its replicas from Allocate.
func (c *computeLimits) preStart(ctx context.Context, resource string, pod kubelet.Pod) error {
	err := c.limitReplicas(ctx, resource, pod)
	if err != nil {
		err = fmt.Errorf("limiting the compute time of pod %s: %w", pod.UID, err)
		c.log.Warn("compute time not limited, container not started", "pod", pod.UID, "resource", resource, "err", err)
	}
	return err
}

func (c *computeLimits) limitReplicas(ctx context.Context, resource string, pod kubelet.Pod) error {
	checked := false
	for _, key := range pod.Devices {
		part, _ := c.gate.Part(key)
		if key.Outlet != resource || part.Share.Class != allocator.Ceiled {
			continue
		}
		// A container that was allocated a replica under another config would run without its limit.
		if !slices.Contains(pod.CDI, replicaDevice(key)) {
			return fmt.Errorf("replica %s was allocated without a limit of its compute time; delete the pod", key.ID)
		}
		if !checked {
			namespace, name, err := c.podName(ctx, pod.UID)
			if err == nil {
				err = c.checkPod(ctx, namespace, name, pod.UID)
			}
			if err != nil {
				return err
			}
			checked = true
		}
		client := client{cdi.ReplicaKind, allocator.ReplicaName(key), mps.Share{GPU: part.GPU, Name: namespaceOf(key), Percentage: part.Share.Percentage()}}
		err := c.alone(ctx, func() error {
			err := c.apply(ctx, client)
			if err == nil {
				c.started[part.GPU] = time.Now()
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// replicaDevice returns the qualified name of the CDI device of a replica.
func replicaDevice(key allocator.Key) string {
	return cdi.ReplicaKind + "=" + allocator.ReplicaName(key)
}

// namespaceOf returns the name of the MPS namespace of a replica: its allocator.ReplicaName without the GPU, whose UUID
// is in the directory of the server. The path of a socket has to be short.
func namespaceOf(key allocator.Key) string {
	name := strings.TrimPrefix(allocator.ReplicaName(key), allocator.DeviceOf(key.ID)+"::")
	return "replica_" + strings.ReplaceAll(name, "-", "_")
}

// replicated reports whether the replicas of a GPU are limited through MPS.
func (c *computeLimits) replicated(uuid string) bool {
	return c.hasReplicas(func(_ *allocator.Resource, d allocator.Device) bool { return d.GPU == uuid })
}

// isReplica reports whether the replica with an allocator.ReplicaName is limited through MPS, or a pod has its CDI
// device. Before the ledger is known, any replica may be.
func (c *computeLimits) isReplica(name string) bool {
	s := c.latest()
	return s.offers == nil || c.hasReplicas(func(r *allocator.Resource, d allocator.Device) bool {
		return slices.ContainsFunc(d.Replicas, func(id string) bool { return allocator.ReplicaName(allocator.Key{Outlet: r.Name, ID: id}) == name })
	}) || slices.ContainsFunc(s.running.checkpoint.Holders, func(h kubelet.Holder) bool { return slices.Contains(h.CDI, cdi.ReplicaKind+"="+name) })
}

// hasReplicas reports whether the ledger has devices that match, and whose replicas are limited through MPS. This
// includes replicas that pods still hold after the config was changed, but not those that wait for other holders, nor
// unheld ones that the driver cannot limit.
func (c *computeLimits) hasReplicas(match func(r *allocator.Resource, d allocator.Device) bool) bool {
	states := []allocator.State{allocator.StateAvailable, allocator.StateUnavailable, allocator.StateDraining}
	return slices.ContainsFunc(c.latest().offers, func(r *allocator.Resource) bool {
		return !r.Sliced() && slices.ContainsFunc(r.Devices, func(d allocator.Device) bool {
			enforced := !d.Unenforceable || d.State == allocator.StateDraining || len(replicaHolders(c.latest(), d.GPU)) > 0
			return d.Class == allocator.Ceiled && slices.Contains(states, d.State) && enforced && match(r, d)
		})
	})
}

// replicaNames returns the names of the namespaces of a GPU's replicas that are limited through MPS, or that pods have.
func (c *computeLimits) replicaNames(uuid string) map[string]bool {
	names, s := map[string]bool{}, c.latest()
	for _, r := range s.offers {
		for _, d := range r.Devices {
			if !r.Sliced() && d.GPU == uuid {
				for _, id := range d.Replicas {
					names[namespaceOf(allocator.Key{Outlet: r.Name, ID: id})] = true
				}
			}
		}
	}
	for _, h := range s.running.checkpoint.Holders {
		if allocator.DeviceOf(h.Device) == uuid {
			names[namespaceOf(allocator.Key{Outlet: h.Resource, ID: h.Device})] = true
		}
	}
	return names
}

// serve keeps the server of a GPU with replicas ready. If the server does not work and no container uses it, serve
// replaces it. It must be called by alone.
func (c *computeLimits) serve(ctx context.Context, uuid string) error {
	if !c.replicated(uuid) { // no longer
		return nil
	}
	if c.failed[uuid] != nil && !c.inUse(uuid) {
		if err := c.control.RemoveServer(ctx, uuid); err != nil {
			return err
		}
		delete(c.failed, uuid)
		delete(c.probed, uuid)
	}
	return c.withServer(ctx, uuid, func() error { return c.control.EnsureServer(ctx, uuid) })
}

// inUse reports whether a container may use the server of a GPU through a replica: one that runs, or one that was about
// to start when the running containers were last listed.
func (c *computeLimits) inUse(uuid string) bool {
	s := c.latest()
	if time.Since(c.started[uuid]) < 2*containersInterval || !s.running.listed && s.running.checkpoint.Received.IsZero() {
		return true
	}
	return slices.ContainsFunc(replicaHolders(s, uuid), func(h kubelet.Holder) bool {
		return !s.running.listed ||
			slices.ContainsFunc(s.running.containers, func(r runtime.Container) bool { return r.Pod.UID == h.PodUID && r.Name == h.Container })
	})
}

// replicaHolders returns the containers that have the CDI device of a replica of a GPU, according to the kubelet's checkpoint.
func replicaHolders(s *snapshot, uuid string) (all []kubelet.Holder) {
	prefix := cdi.ReplicaKind + "=" + uuid + "::"
	for _, h := range s.running.checkpoint.Holders {
		if slices.ContainsFunc(h.CDI, func(name string) bool { return strings.HasPrefix(name, prefix) }) {
			all = append(all, h)
		}
	}
	return all
}
