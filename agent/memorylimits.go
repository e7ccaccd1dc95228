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
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/kubelet"
)

// preStartTimeout bounds the driver calls before a container starts. The kubelet waits up to 30 s.
const preStartTimeout = 20 * time.Second

// restoreInterval is the time between checks for limits that are lost.
const restoreInterval = 10 * time.Second

// memoryLimits limits the GPU memory of pods before their containers start, and while they run.
type memoryLimits struct {
	node     host.Root
	log      *slog.Logger
	gate     *allocator.Gate
	settings *driver.Settings
	latest   func() *snapshot
	used     *usedMemory

	pluginDir string // of the device plugins, with the kubelet's checkpoint
}

func (a *Agent) memoryLimits(gate *allocator.Gate) memoryLimits {
	return memoryLimits{node: a.cfg.Node, log: a.log, gate: gate, settings: &a.settings, latest: a.latest.Load, used: &a.used,
		pluginDir: a.cfg.devicePluginDir()}
}

// ofClaims implements dra.Config.LimitMemory.
func (m memoryLimits) ofClaims(ctx context.Context, podUID string) error {
	return m.set(ctx, podUID, m.gate.MemoryLimits(podUID), func(current, limit uint64) bool { return current == limit })
}

// ofReplicas implements kubelet.Config.PreStart. It limits the pod on each GPU to the sum of its replicas there, with the
// size that they had when they were granted, which may differ from that in the current config.
func (m memoryLimits) ofReplicas(ctx context.Context, resource string, pod kubelet.Pod) error {
	err := m.setReplicas(ctx, resource, pod)
	if err != nil {
		err = fmt.Errorf("limiting the GPU memory of pod %s: %w", pod.UID, err)
		m.log.Warn("GPU memory not limited, container not started", "pod", pod.UID, "resource", resource, "err", err)
	}
	return err
}

// setReplicas returns an error if the part of a replica of the resource is unknown, because the container would start
// without a limit otherwise.
func (m memoryLimits) setReplicas(ctx context.Context, resource string, pod kubelet.Pod) error {
	for _, key := range pod.Devices {
		part, _ := m.gate.Part(key)
		if key.Outlet == resource && part.Share == (allocator.Share{}) && key.ID != allocator.DeviceOf(key.ID) {
			return fmt.Errorf("the agent does not know yet which part of its GPU %s of %s is; if this persists, delete the pod", key.ID, resource)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, preStartTimeout, fmt.Errorf("no response within %s", preStartTimeout))
	defer cancel()
	return m.limitReplicas(ctx, pod.UID, m.partsOf(pod))
}

// limitReplicas limits a pod to its parts of GPUs.
func (m memoryLimits) limitReplicas(ctx context.Context, podUID string, parts []allocator.Part) error {
	limits, err := allocator.MemoryLimits(m.latest().known, parts)
	if err != nil {
		return err
	}
	// The devices of a pod do not change, so a lower limit was set with the parts of then.
	return m.set(ctx, podUID, limits, func(current, limit uint64) bool { return current <= limit })
}

// keep restores lost limits of running pods until ctx ends, and records how much they use: a driver that was reloaded has
// lost all limits.
func (m memoryLimits) keep(ctx context.Context, c *claims) {
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
			m.log.Warn("pods may have no limit of their GPU memory, will retry", "err", now)
		}
		logged = now
	}
}

func (m memoryLimits) restore(ctx context.Context, c *claims) error {
	ctx, cancel := context.WithTimeoutCause(ctx, preStartTimeout, fmt.Errorf("no response within %s", preStartTimeout))
	defer cancel()
	defer m.used.prune(time.Now())
	checkpoint, err := kubelet.ReadCheckpoint(m.pluginDir)
	errs := []error{err, c.restoreLimits(ctx)}
	for _, pod := range checkpoint.Pods() {
		if m.lost(pod) {
			continue
		}
		if err := m.limitReplicas(ctx, pod.UID, m.partsOf(pod)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("pod %s: %w", pod.UID, err))
		}
	}
	return errors.Join(errs...)
}

// restoreLimits restores lost memory limits of the pods that use claims, by the kubelet's checkpoint.
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

// lost reports whether the parts of a pod's replicas are not those with which it started, because the agent has lost its
// state: the pod may have another limit, or none.
func (m memoryLimits) lost(pod kubelet.Pod) bool {
	return slices.ContainsFunc(pod.Devices, func(key allocator.Key) bool {
		part, _ := m.gate.Part(key)
		isReplica := strings.HasPrefix(key.ID, "GPU-") && key.ID != allocator.DeviceOf(key.ID)
		return isReplica && part.Share == (allocator.Share{}) || part.Share.Class == allocator.PerhapsLimited
	})
}

// partsOf returns the parts of a pod's devices, as far as they are known.
func (m memoryLimits) partsOf(pod kubelet.Pod) (parts []allocator.Part) {
	for _, key := range pod.Devices {
		part, _ := m.gate.Part(key)
		parts = append(parts, part)
	}
	return parts
}

// set sets the limits of a pod in bytes, by the UUID of the GPU, unless a current limit suffices.
func (m memoryLimits) set(ctx context.Context, podUID string, limits map[string]uint64, suffices func(current, limit uint64) bool) error {
	if len(limits) == 0 {
		return nil
	}
	cgroup, err := m.node.PodCgroup(podUID)
	if err != nil {
		return err
	}
	used, err := m.setOn(ctx, cgroup, podUID, limits, suffices)
	m.used.record(podUID, used)
	return err
}

// setOn sets the limits of a cgroup of a pod, and returns how much of each it used before.
func (m memoryLimits) setOn(ctx context.Context, cgroup, podUID string, limits map[string]uint64, suffices func(current, limit uint64) bool) (used map[string]uint64, err error) {
	used = map[string]uint64{}
	for _, uuid := range slices.Sorted(maps.Keys(limits)) {
		current, bytes, err := m.settings.MemoryLimit(ctx, uuid, cgroup)
		if err != nil {
			return used, err
		}
		used[uuid] = bytes
		if suffices(current, limits[uuid]) {
			continue
		}
		if err := m.settings.SetMemoryLimit(ctx, uuid, cgroup, limits[uuid]); err != nil {
			return used, err
		}
		m.log.Info("GPU memory of pod limited", "pod", podUID, "gpu", uuid, "bytes", limits[uuid], "cgroup", cgroup)
	}
	return used, nil
}
