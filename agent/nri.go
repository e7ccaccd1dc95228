package agent

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/runtime"
	"github.com/gpucdi/gpucdi/runtime/nri"
	"github.com/gpucdi/gpucdi/status"
)

// syncNRI runs the NRI plugin while the config enables it.
func (a *Agent) syncNRI(ctx context.Context, limits memoryLimits) {
	stop := func() {}
	defer func() { stop() }()
	for {
		select {
		case <-ctx.Done():
			return
		case wanted := <-a.nriChanged:
			if running := a.nri.Load() != nil; wanted.Enabled && !running {
				stop = a.startNRI(ctx, limits)
			} else if !wanted.Enabled && running {
				stop()
				stop = func() {}
			}
		}
	}
}

func (a *Agent) startNRI(ctx context.Context, limits memoryLimits) (stop func()) {
	plugin := nri.New(nri.Config{Node: a.cfg.Node, Create: a.checkContainer, Start: limits.limitContainer}, a.log)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); plugin.Run(ctx) }()
	a.nri.Store(plugin)
	return func() {
		a.nri.Store(nil)
		cancel()
		<-ended
	}
}

// checkContainer returns an error if a container that the runtime is about to create lacks GPUs that were allocated to
// it, or if it has other GPUs and the config rejects such containers.
func (a *Agent) checkContainer(ctx context.Context, c runtime.Container) error {
	now := a.latest.Load()
	if len(now.plan.parts.GPUs) == 0 {
		return nil // the device nodes are unknown
	}
	checkpoint, err := kubelet.ReadCheckpoint(a.cfg.devicePluginDir())
	prepared, errPrepared := kubelet.PreparedClaims(a.cfg.kubeletRoot())
	if err := errors.Join(err, errPrepared); err != nil {
		a.log.Warn("container not checked through NRI, its allocation is unknown", "container", c.String(), "err", err)
		return nil
	}
	var holders []kubelet.Holder
	if slices.ContainsFunc(prepared, func(p kubelet.PreparedClaim) bool { return a.prepares(p) && slices.Contains(p.Pods, c.Pod.UID) }) {
		if holders, err = a.holders.refresh(ctx); err != nil {
			a.log.Warn("devices of claims not checked through NRI", "container", c.String(), "err", err)
		}
	}
	audit := now.auditOf([]runtime.Container{c}, checkpoint, prepared, holders)
	for _, use := range audit.Lacking {
		return fmt.Errorf("gpucdi: container %s lacks the device nodes of %s, which were allocated to it; the container runtime did not inject the CDI devices; run gpucdi doctor",
			use, strings.Join(use.GPUs, ", "))
	}
	for _, use := range audit.Foreign {
		if now.config.NRI.Foreign == config.ForeignReject && a.allocationsComplete(c.Pod.UID, checkpoint, prepared) {
			return fmt.Errorf("gpucdi: container %s has device nodes of %s, which were not allocated to it; request nvidia.com/gpu or a ResourceClaim instead (nri.foreign is reject)",
				use, strings.Join(use.GPUs, ", "))
		}
		a.log.Warn("container has GPUs that are not allocated to it", "container", use.String(), "gpus", use.GPUs)
	}
	return nil
}

// prepares reports whether a claim has devices of the agent's DRA driver.
func (a *Agent) prepares(p kubelet.PreparedClaim) bool {
	return slices.Contains(p.Drivers, a.cfg.DRADriver)
}

// allocationsComplete reports whether the kubelet's checkpoints have all allocations of a pod. A checkpoint may have
// been deleted, and another DRA driver can allocate GPUs under other names.
func (a *Agent) allocationsComplete(podUID string, checkpoint kubelet.Checkpoint, prepared []kubelet.PreparedClaim) bool {
	if checkpoint.Version == "" || prepared == nil && a.cfg.DRADriver != "" {
		return false
	}
	return !slices.ContainsFunc(prepared, func(p kubelet.PreparedClaim) bool {
		return slices.Contains(p.Pods, podUID) && slices.ContainsFunc(p.Drivers, func(name string) bool { return name != a.cfg.DRADriver })
	})
}

// dmem is the cgroup controller with which the limit of a pod holds for the sum of its containers. Without it, the driver
// limits cgroups itself, and a container with a limit of its own does not count for the pod.
const dmem = "dmem"

// limitContainer sets the memory limits of a pod also on the cgroup of a container, so that its programs see the limits
// as the memory of the GPUs. The limits of the pod remain in effect if this fails, or if the kernel has no dmem.
func (m memoryLimits) limitContainer(ctx context.Context, c runtime.Container, cgroup string) {
	uuids := c.DevicesOf(m.latest().deviceNumbers())
	if !m.settings.LimitsMemory() || len(uuids) == 0 {
		return
	}
	if !m.node.HasCgroupController(dmem) {
		m.podsOnly()
		return
	}
	if err := m.copyPodLimits(ctx, c.Pod.UID, cgroup, uuids); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		m.log.Warn("memory limit not set on container, its programs see the memory of the whole GPU", "container", c.String(), "err", err)
	}
}

func (m memoryLimits) copyPodLimits(ctx context.Context, podUID, cgroup string, uuids []string) error {
	pod, err := m.node.PodCgroup(podUID)
	if err != nil {
		return err
	}
	limits := map[string]uint64{}
	var errs []error
	for _, uuid := range uuids {
		limit, _, err := m.settings.MemoryLimit(ctx, uuid, pod)
		if err != nil {
			errs = append(errs, err)
		} else if limit != gpu.MemoryUnlimited {
			limits[uuid] = limit
		}
	}
	_, err = m.setCgroup(ctx, path.Join(pod, cgroup), podUID, limits, gpu.IsMemoryLimit)
	return errors.Join(append(errs, err)...)
}

// nriStatus returns the status of the NRI plugin; nil if the config does not enable it.
func (a *Agent) nriStatus() *status.NRI {
	plugin := a.nri.Load()
	if plugin == nil {
		return nil
	}
	s := plugin.Status()
	return &status.NRI{Runtime: s.Runtime, Connected: s.Since, Error: s.Problem}
}
