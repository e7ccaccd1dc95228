package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/kubelet"
)

// preStartTimeout bounds the calls to the driver and MPS before a container starts, and the driver calls of a restore.
// The kubelet waits up to 30 s before a start.
const preStartTimeout = 20 * time.Second

// preStartRetry is the time before a call to the driver is repeated that may succeed soon.
const preStartRetry = 200 * time.Millisecond

// restoreInterval is the time between two restores of lost limits.
const restoreInterval = 10 * time.Second

// memoryLimits limits the GPU memory of pods before their containers start, and while they run.
type memoryLimits struct {
	node     host.Root
	log      *slog.Logger
	gate     *allocator.Gate
	settings memorySettings
	latest   func() *snapshot
	used     *usedMemory

	pluginDir string // device-plugins directory, which contains the kubelet's checkpoint
	podsOnly  func() // logs once that containers get no limits of their own
}

// memorySettings reads and sets the memory limits of cgroups. *driver.Settings implements it.
type memorySettings interface {
	LimitsMemory() bool
	MemoryLimit(ctx context.Context, uuid, cgroup string) (limit, used uint64, err error)
	SetMemoryLimit(ctx context.Context, uuid, cgroup string, limit uint64) error
}

func (a *Agent) memoryLimits(gate *allocator.Gate) memoryLimits {
	return memoryLimits{node: a.cfg.Node, log: a.log, gate: gate, settings: &a.settings, latest: a.latest.Load, used: &a.used,
		pluginDir: a.cfg.devicePluginDir(), podsOnly: sync.OnceFunc(func() {
			a.log.Info("memory limits not set on containers, their programs see the memory of the whole GPU", "missing", "cgroup controller "+dmem)
		})}
}

// limitByClaims implements dra.Config.LimitMemory.
func (m memoryLimits) limitByClaims(ctx context.Context, podUID string) error {
	return m.set(ctx, podUID, m.gate.MemoryLimits(podUID), nil, gpu.IsMemoryLimit)
}

// preStart implements kubelet.Config.PreStart. It limits the pod on each GPU to the sum of its replicas there. A
// replica has the size with which it was granted, which may differ from the size in the current config. While the driver
// worker is absent or busy, preStart retries until ctx ends, so that a container does not fail because of a short gap.
func (m memoryLimits) preStart(ctx context.Context, resource string, pod kubelet.Pod) error {
	err := m.limitReplicas(ctx, resource, pod)
	for driver.Temporary(err) && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(preStartRetry):
			err = m.limitReplicas(ctx, resource, pod)
		}
	}
	if err != nil {
		err = fmt.Errorf("limiting the GPU memory of pod %s: %w", pod.UID, err)
		m.log.Warn("GPU memory not limited, container not started", "pod", pod.UID, "resource", resource, "err", err)
	}
	return err
}

// limitReplicas limits a pod to its replicas. It returns an error if the size of a replica of the resource is unknown,
// because otherwise the container would start without a limit.
func (m memoryLimits) limitReplicas(ctx context.Context, resource string, pod kubelet.Pod) error {
	for _, key := range pod.Devices {
		part, _ := m.gate.Part(key)
		if key.Outlet == resource && part.Share == (allocator.Share{}) && key.ID != allocator.DeviceOf(key.ID) {
			return fmt.Errorf("the size of replica %s of %s is unknown; if this persists, delete the pod", key.ID, resource)
		}
	}
	suffices := gpu.IsMemoryLimit
	if m.partsUncertain(pod) {
		suffices = noHigher
	}
	return m.limitParts(ctx, pod.UID, m.partsOf(pod), suffices)
}

// noHigher keeps the limit that was computed when a pod started, if the parts may be outdated or have been enlarged since.
func noHigher(current, limit uint64) bool { return current <= limit }

// limitParts limits a pod to parts of GPUs.
func (m memoryLimits) limitParts(ctx context.Context, podUID string, parts []allocator.Part, suffices func(current, limit uint64) bool) error {
	limits, err := allocator.MemoryLimits(m.latest().known, parts)
	if err != nil {
		return err
	}
	return m.set(ctx, podUID, limits, allocator.Ceilings(parts), suffices)
}

// maintain restores lost limits of running pods, and records how much memory they use, until ctx ends. A driver loses
// all limits when it is reloaded.
func (m memoryLimits) maintain(ctx context.Context, c *claims) {
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(restoreInterval):
		}
		if !m.settings.LimitsMemory() {
			m.used.prune(time.Now())
			continue
		}
		now := errString(m.restore(ctx, c))
		if now != "" && now != logged && ctx.Err() == nil {
			m.log.Warn("pods may have no GPU memory limit, will retry", "err", now)
		}
		logged = now
	}
}

func (m memoryLimits) restore(ctx context.Context, c *claims) error {
	ctx, cancel := context.WithTimeoutCause(ctx, preStartTimeout, fmt.Errorf("no response within %s", preStartTimeout))
	defer cancel()
	start := time.Now()
	defer m.used.prune(start) // forgets the pods that are not recorded below
	checkpoint, err := kubelet.ReadCheckpoint(m.pluginDir)
	errs := []error{err, c.restoreLimits(ctx)}
	for _, pod := range checkpoint.Pods() {
		if m.partsUncertain(pod) {
			continue
		}
		if err := m.limitParts(ctx, pod.UID, m.partsOf(pod), noHigher); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("pod %s: %w", pod.UID, err))
		}
	}
	return errors.Join(errs...)
}

// restoreLimits restores lost memory limits of the pods that use claims according to the kubelet's checkpoint.
func (c *claims) restoreLimits(ctx context.Context) error {
	if c == nil {
		return nil
	}
	prepared, err := kubelet.PreparedClaims(c.node, c.kubeletDir)
	pods := map[string][]string{}
	for _, p := range prepared {
		pods[p.UID] = p.Pods
	}
	return errors.Join(err, c.driver.RestoreLimits(ctx, func(claim string) []string { return pods[claim] }))
}

// partsUncertain reports whether the sizes of a pod's replicas may differ from those with which it started, because the
// agent has lost its state. The pod may have another limit, or none.
func (m memoryLimits) partsUncertain(pod kubelet.Pod) bool {
	return slices.ContainsFunc(pod.Devices, func(key allocator.Key) bool {
		part, _ := m.gate.Part(key)
		isReplica := strings.HasPrefix(key.ID, "GPU-") && key.ID != allocator.DeviceOf(key.ID)
		return isReplica && part.Share == (allocator.Share{}) || part.Share.Class == allocator.PerhapsLimited
	})
}

// partsOf returns the parts of a pod's devices; the zero Part for devices that the gate does not track.
func (m memoryLimits) partsOf(pod kubelet.Pod) (parts []allocator.Part) {
	for _, key := range pod.Devices {
		part, _ := m.gate.Part(key)
		parts = append(parts, part)
	}
	return parts
}

// set sets the memory limits of a pod, in bytes by UUID of the GPU. It skips GPUs whose current limit suffices. It records
// the limits, how much memory the pod uses, and the ceilings of its compute time, in percent by UUID.
func (m memoryLimits) set(ctx context.Context, podUID string, limits map[string]uint64, ceilings map[string]int, suffices func(current, limit uint64) bool) error {
	if len(limits) == 0 {
		return nil
	}
	cgroup, err := m.node.PodCgroup(podUID)
	if err != nil {
		return err
	}
	used, err := m.setCgroup(ctx, cgroup, podUID, limits, suffices)
	for uuid, u := range used {
		u.ceiling = ceilings[uuid]
		used[uuid] = u
	}
	m.used.record(podUID, used)
	return err
}

// setCgroup sets the memory limits of one cgroup of a pod, in bytes by UUID of the GPU, unless a current limit
// suffices. It returns the limits and how much memory the cgroup uses, also by UUID. If a GPU fails, the others are
// limited nevertheless.
func (m memoryLimits) setCgroup(ctx context.Context, cgroup, podUID string, limits map[string]uint64, suffices func(current, limit uint64) bool) (used podMemory, err error) {
	used = podMemory{}
	var errs []error
	for _, uuid := range slices.Sorted(maps.Keys(limits)) {
		current, bytes, err := m.settings.MemoryLimit(ctx, uuid, cgroup)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		used[uuid] = memoryUse{limit: current, used: bytes}
		if suffices(current, limits[uuid]) {
			continue
		}
		if err := m.settings.SetMemoryLimit(ctx, uuid, cgroup, limits[uuid]); err != nil {
			errs = append(errs, err)
			continue
		}
		used[uuid] = memoryUse{limit: limits[uuid], used: bytes}
		m.log.Info("GPU memory of pod limited", "pod", podUID, "gpu", uuid, "bytes", limits[uuid], "cgroup", cgroup)
	}
	return used, errors.Join(errs...)
}
