package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/runtime"
	"github.com/gpucdi/gpucdi/status"
)

const (
	// runtimeInterval is how often the runtime is inspected. It may be upgraded or reconfigured at any time.
	runtimeInterval = time.Minute
	// problemInterval is the interval while the runtime has a problem, which an admin may be fixing.
	problemInterval = 5 * time.Second
	// runtimeTimeout bounds one inspection of the runtime, or one list of its containers.
	runtimeTimeout = 10 * time.Second
)

// watchRuntime yields the container runtime of the node and its CDI configuration.
func (a *Agent) watchRuntime(ctx context.Context, yield func(runtime.Info)) error {
	for {
		info, err := a.detectRuntime(ctx)
		if err != nil {
			return err
		}
		yield(info)
		wait := runtimeInterval
		if info.Problem(a.cfg.CDIDir) != "" {
			wait = problemInterval
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// containersInterval is how often running containers are compared with their allocations.
const containersInterval = 15 * time.Second

// running are the running containers, and the kubelet's checkpoints and pod resources with their allocations, each as
// last read.
type running struct {
	containers    []runtime.Container
	checkpoint    kubelet.Checkpoint
	prepared      []kubelet.PreparedClaim
	preparedBegan time.Time        // before prepared was read
	holders       []kubelet.Holder // of claims and others; nil while there are no claims
	listed        bool             // the containers of the kubelet's runtime were listed at least once
	err           error            // why a part is missing or stale
}

// watchContainers yields the running containers of the node.
func (a *Agent) watchContainers(ctx context.Context, yield func(running)) error {
	lists := runningLists{}
	var now running
	for {
		a.readRunning(ctx, &now, lists)
		if ctx.Err() != nil {
			return nil
		}
		yield(now)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(containersInterval):
		}
	}
}

// runningLists are the containers of each runtime as last listed, by socket. They outlive a runtime that stops or
// hangs.
type runningLists map[string][]runtime.Container

// put replaces the containers of a runtime. It drops the PID of a process that the node's /proc does not show, for
// example because /proc is mounted with hidepid.
func (l runningLists) put(node host.Root, socket string, containers []runtime.Container) {
	for i := range containers {
		if processEnded(node, containers[i].PID) {
			containers[i].PID = 0
		}
	}
	l[socket] = containers
}

// prune removes the containers whose process has ended from the lists of runtimes that were not listed this time. Such
// a runtime may have been uninstalled.
func (l runningLists) prune(node host.Root, listed map[string]bool) {
	for socket, containers := range l {
		if listed[socket] {
			continue
		}
		l[socket] = slices.DeleteFunc(containers, func(c runtime.Container) bool { return c.PID != 0 && processEnded(node, c.PID) })
		if len(l[socket]) == 0 {
			delete(l, socket)
		}
	}
}

// processEnded reports whether a process is not in the node's /proc.
func processEnded(node host.Root, pid int) bool {
	_, err := node.Stat(fmt.Sprintf("/proc/%d", pid))
	return errors.Is(err, fs.ErrNotExist)
}

// readRunning reads the checkpoints after the containers, so that they include the allocations of all these containers:
// the kubelet records an allocation before it creates the container.
func (a *Agent) readRunning(ctx context.Context, now *running, lists runningLists) {
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	var errs []error
	listed := map[string]bool{}
	for i, list := range runtime.ListRunning(ctx, a.cfg.Node, a.cfg.KubeletDir) {
		_, before := lists[list.Socket]
		switch {
		case list.Err == nil:
			lists.put(a.cfg.Node, list.Socket, list.Containers)
			listed[list.Socket] = true
			now.listed = now.listed || i == 0
		case before || !errors.Is(list.Err, runtime.ErrStopped):
			errs = append(errs, list.Err)
		}
	}
	lists.prune(a.cfg.Node, listed)
	now.containers = slices.Concat(slices.Collect(maps.Values(lists))...)
	checkpoint, err := kubelet.ReadCheckpoint(a.cfg.devicePluginDir())
	if err == nil {
		now.checkpoint = checkpoint
	}
	began := time.Now()
	prepared, errPrepared := kubelet.PreparedClaims(a.cfg.kubeletRoot())
	if errPrepared == nil {
		now.prepared, now.preparedBegan = prepared, began
	}
	var errHolders error
	if now.holders = nil; slices.ContainsFunc(now.prepared, a.prepares) {
		now.holders, errHolders = a.holders.list(ctx)
	}
	now.err = errors.Join(append(errs, err, errPrepared, errHolders)...)
}

// audit compares the running containers with their allocations. Any container may use excluded devices. While the
// device nodes of the GPUs are unknown, the previous result is kept.
func (l *loop) audit() {
	if r := l.running; r.listed && len(l.plan.parts.GPUs) > 0 {
		l.audited = l.auditOf(r.containers, r.checkpoint, r.prepared, r.holders)
	}
}

// auditOf compares containers with their allocations.
func (s *snapshot) auditOf(containers []runtime.Container, checkpoint kubelet.Checkpoint, prepared []kubelet.PreparedClaim, holders []kubelet.Holder) runtime.Audit {
	numbers := s.deviceNumbers()
	allocations := kubelet.Allocations(cdi.AgentKind, slices.Collect(maps.Keys(numbers)), checkpoint, prepared, holders)
	return runtime.NewAudit(containers, allocations, numbers)
}

// deviceNumbers returns the numbers of the device nodes of GPUs and MIG devices that are not excluded, by UUID.
func (s *snapshot) deviceNumbers() map[string][]uint64 {
	return s.plan.parts.DeviceNumbers(s.config.Policy().Excluded(s.plan.inventory)...)
}

// foreign returns the devices that containers outside Kubernetes use, if the config respects them.
func (l *loop) foreign(r partResolver) (foreign []allocator.Foreign) {
	if !l.config.Allocation.RespectForeignContainers {
		return nil
	}
	for _, use := range l.audited.Foreign {
		for _, uuid := range use.GPUs {
			// Omit a MIG device that is gone and whose GPU is unknown: it would conflict with every GPU.
			if part := r.device(uuid); use.Pod.UID == "" && part.GPU != "" {
				foreign = append(foreign, allocator.Foreign{Device: part, Container: use.String()})
			}
		}
	}
	return foreign
}

func containersStatus(a runtime.Audit, err error) status.Containers {
	s := status.Containers{Foreign: usesStatus(a.Foreign), Lacking: usesStatus(a.Lacking), Error: errString(err)}
	for _, c := range a.Privileged {
		s.Privileged = append(s.Privileged, c.String())
	}
	return s
}

func usesStatus(uses []runtime.Use) (s []status.Container) {
	for _, use := range uses {
		s = append(s, status.Container{Name: use.String(), GPUs: use.GPUs, InPod: use.Pod.UID != ""})
	}
	return s
}

func (a *Agent) detectRuntime(ctx context.Context) (runtime.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	return runtime.Detect(ctx, a.cfg.Node, a.cfg.KubeletDir)
}

func (a *Agent) runtimeStatus(u update[runtime.Info]) status.Runtime {
	if u.err != nil {
		return status.Runtime{Error: gpu.OneLine(u.err)}
	}
	return status.Runtime{Name: u.value.Name, Version: u.value.Version, CDI: u.value.CDI,
		SpecDirs: u.value.SpecDirs, Error: u.value.Problem(a.cfg.CDIDir)}
}
