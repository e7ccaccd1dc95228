package agent

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/mps"
	"github.com/gpucdi/gpucdi/runtime"
)

// preStart limits the compute time of a pod's replicas of a resource, before a container starts. It is called for
// kubelet.Config.PreStart. The container has the CDI devices of its replicas from Allocate.
func (c *computeLimits) preStart(ctx context.Context, resource string, pod kubelet.Pod) error {
	ctx, cancel := context.WithTimeoutCause(ctx, preStartTimeout, fmt.Errorf("no response within %s", preStartTimeout))
	defer cancel()
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
		if !checked {
			if err := c.checkHolder(ctx, key, pod.UID); err != nil {
				return err
			}
			checked = true
		}
		name, err := mps.Name(key.ID)
		if err != nil {
			return err
		}
		client := client{cdi.ReplicaKind, key.ID, mps.Share{GPU: part.GPU, Name: name, Percentage: part.Share.Percentage()}}
		if err := c.alone(ctx, func() error { return c.apply(ctx, client) }); err != nil {
			return err
		}
	}
	return nil
}

// checkHolder checks the pod with a UID, whose name it gets from the kubelet as that of a holder of a device.
func (c *computeLimits) checkHolder(ctx context.Context, device allocator.Key, uid string) error {
	holders, err := c.holders(ctx)
	if err != nil {
		return err
	}
	for _, h := range holders {
		if h.Resource == device.Outlet && h.Device == device.ID {
			return c.checkPod(ctx, h.Namespace, h.Pod, uid)
		}
	}
	return fmt.Errorf("the kubelet lists no pod with %s of %s; the kubelet retries", device.ID, device.Outlet)
}

// replicated reports whether the replicas of a GPU are limited through MPS.
func (c *computeLimits) replicated(uuid string) bool {
	return c.hasReplicas(func(d allocator.Device) bool { return d.GPU == uuid })
}

// isReplica reports whether a replica is limited through MPS. Before the ledger is known, any may be.
func (c *computeLimits) isReplica(id string) bool {
	return c.latest().offers == nil || c.hasReplicas(func(d allocator.Device) bool { return slices.Contains(d.Replicas, id) })
}

// hasReplicas reports whether the ledger has devices that match, and whose replicas are limited through MPS. This
// includes replicas that pods still hold after the config was changed.
func (c *computeLimits) hasReplicas(match func(d allocator.Device) bool) bool {
	return slices.ContainsFunc(c.latest().offers, func(r *allocator.Resource) bool {
		return !r.Sliced() && slices.ContainsFunc(r.Devices, func(d allocator.Device) bool {
			return d.Class == allocator.Ceiled && d.State != allocator.StateReleased && match(d)
		})
	})
}

// serve keeps the server of a GPU with replicas ready. If the server does not work and no container has the GPU, serve
// replaces it. It must be called by alone.
func (c *computeLimits) serve(ctx context.Context, uuid string) error {
	if c.failed[uuid] && !c.inUse(uuid) {
		if err := c.endServer(ctx, uuid); err != nil {
			return err
		}
	}
	if err := c.setMode(ctx, uuid, gpu.ComputeModeExclusiveProcess); err != nil {
		return err
	}
	return c.control.EnsureServer(ctx, uuid)
}

// inUse reports whether a running container has the device nodes of a GPU.
func (c *computeLimits) inUse(uuid string) bool {
	s := c.latest()
	nodes := s.plan.parts.DeviceNumbers()
	return slices.ContainsFunc(s.running.containers, func(r runtime.Container) bool {
		return slices.Contains(r.DevicesOf(nodes), uuid)
	})
}
