package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/runtime"
)

// reportChanges logs the difference between two snapshots and records Events for it.
func (a *Agent) reportChanges(before, now *snapshot) {
	a.reportConfig(&before.config, &now.config)
	a.reportRuntime(before.runtime, now.runtime)
	a.reportContainers(before, now)
	logDriver(a.log, before.driver, now.driver)
	if old, version := before.known.Driver.Version, now.known.Driver.Version; driverChanged(before, now) {
		a.events.Record(cluster.Event{Type: cluster.Normal, Reason: gpuDriverChanged, Routine: true,
			Message: fmt.Sprintf("NVIDIA driver changed from %s to %s", old, version)})
	}
	if reason := errString(now.plan.unchecked); reason != "" && reason != errString(before.plan.unchecked) {
		a.log.Warn("other CDI specs not checked for conflicts", "reason", reason)
	}
	if problem := errString(now.cordons.problem); problem != "" && problem != errString(before.cordons.problem) {
		a.log.Warn("cordons may be incomplete or stale", "err", problem)
	}
	a.reportDevices(before, now)
}

// driverChanged reports whether a driver was replaced by one of another version.
func driverChanged(before, now *snapshot) bool {
	old := before.known.Driver.Version
	return old != "" && old != now.known.Driver.Version
}

func (a *Agent) reportConfig(before, now *settings) {
	problem := now.problem()
	if problem == "" || problem == before.problem() {
		return
	}
	a.log.Error(now.consequence(), "path", a.cfg.ConfigFile, "err", now.invalid)
	a.events.Record(cluster.Event{Type: cluster.Warning, Reason: gpuConfigRefused, Message: problem})
}

// reportRuntime logs changes of the container runtime, and records an Event for a problem.
func (a *Agent) reportRuntime(before, now update[runtime.Info]) {
	if now.err != nil || reflect.DeepEqual(before, now) {
		return
	}
	info := now.value
	if problem := info.Problem(a.cfg.CDIDir); problem != "" {
		a.log.Error("container runtime cannot inject GPUs", "reason", problem, "socket", info.Socket)
		a.events.Record(cluster.Event{Type: cluster.Warning, Reason: runtimeWithoutCDI, Message: problem})
		return
	}
	a.log.Info("container runtime supports CDI", "name", info.Name, "version", info.Version, "socket", info.Socket, "specDirs", info.SpecDirs)
}

// reportContainers logs containers whose GPUs differ from their allocation, and records one Event for those that lack
// GPUs.
func (a *Agent) reportContainers(before, now *snapshot) {
	if reason := errString(now.running.err); reason != "" && reason != errString(before.running.err) && !errors.Is(now.running.err, errNotListed) {
		a.log.Warn("running containers not listed, will retry", "err", reason)
	}
	for _, use := range newUses(before.audited.Foreign, now.audited.Foreign) {
		a.log.Warn("container has GPUs that are not allocated to it", "container", use.String(), "id", use.ID, "gpus", use.GPUs)
	}
	var names []string
	for _, use := range newUses(before.audited.Lacking, now.audited.Lacking) {
		a.log.Error("container lacks its allocated GPUs", "container", use.String(), "id", use.ID, "gpus", use.GPUs, "remedy", "delete the pod")
		names = append(names, use.String())
	}
	if len(names) > 0 {
		a.events.Record(cluster.Event{Type: cluster.Warning, Reason: podWithoutGPU, Message: fmt.Sprintf(
			"containers were started without their allocated GPUs; delete their pods, so that replacements start with CDI: %s", strings.Join(names, ", "))})
	}
}

// newUses returns the uses that are in now but not in before. The restart of a pod's container is not a new use, unless no
// container was running when before was collected.
func newUses(before, now []runtime.Use) []runtime.Use {
	same := func(a, b runtime.Use) bool {
		return slices.Equal(a.GPUs, b.GPUs) && (a.ID == b.ID || a.Pod.UID != "" && a.Pod.UID == b.Pod.UID && a.Name == b.Name)
	}
	return slices.DeleteFunc(slices.Clone(now), func(use runtime.Use) bool {
		return slices.ContainsFunc(before, func(b runtime.Use) bool { return same(use, b) })
	})
}

func (a *Agent) reportDevices(before, now *snapshot) {
	changes := slices.DeleteFunc(allocator.Changes(before.offers, now.offers), func(c allocator.Change) bool {
		// New devices that wait are not reported until they are advertised.
		return c.Before.State == "" && c.Now.State == allocator.StateWaiting && c.Now.Fault.None()
	})
	for _, devices := range groupByFault(changes) {
		event := now.event(devices)
		event.Routine = event.Type == cluster.Normal && driverChanged(before, now)
		a.events.Record(event)
	}
	for _, e := range now.moved(before.offers, changes) {
		a.events.Record(e)
	}
	for _, c := range changes {
		g, _ := now.known.Find(c.Now.GPU)
		logDevice(a.log.With("device", c.Now.ID, "resource", now.outletName(c.Resource), "index", c.Now.Index, "product", g.Product), c)
	}
}

// logDriver logs a driver report unless it equals the previous one. While a GPU keeps crashing the driver worker,
// reports arrive every few seconds.
func logDriver(log *slog.Logger, before, now *driver.Snapshot) {
	switch {
	case before == now || before != nil && sameDriver(before, now):
	case noDriver(now.Err):
		log.Warn("driver not found, waiting for it", "reason", now.Err)
	case now.Err != nil:
		log.Error("driver read failed, will retry", "err", now.Err)
	default:
		log.Info("driver read", summary(now)...)
		for _, u := range now.Inventory.Unreadable {
			log.Error("GPU or MIG device unreadable, not advertised", "index", u.Index, "code", u.Fault.Code, "reason", u.Fault.Message, "remedy", u.Fault.Remedy)
		}
	}
}

func sameDriver(before, now *driver.Snapshot) bool {
	if before.Err != nil || now.Err != nil {
		return errString(before.Err) == errString(now.Err)
	}
	return slices.Equal(summary(before), summary(now)) && slices.Equal(before.Inventory.Unreadable, now.Inventory.Unreadable)
}

// summary returns the log attributes of a report without error.
func summary(r *driver.Snapshot) []any {
	return []any{
		"driver", r.Inventory.Driver.Version, "cuda", r.Inventory.Driver.CUDA.String(), "root", r.Driver.String(),
		"gpus", len(r.Inventory.GPUs), "unreadable", len(r.Inventory.Unreadable),
	}
}

func logDevice(log *slog.Logger, c allocator.Change) {
	d := c.Now
	if d.Shared() {
		log = log.With("replicas", len(d.Replicas))
	}
	switch {
	case d.Fault.Code == gpu.FaultCordoned:
		log.Info("device cordoned", "reason", d.Fault.Message, "remedy", d.Fault.Remedy)
	case !d.Fault.None():
		log.Error("device unhealthy", "code", d.Fault.Code, "reason", d.Fault.Message, "remedy", d.Fault.Remedy)
	case d.State == allocator.StateDraining:
		log.Info("device draining", "reason", d.Reason)
	case d.State == allocator.StateReleased:
		log.Info("device released")
	case !d.Healthy():
		log.Info("device waiting", "reason", d.Reason)
	case c.Before.State == "":
		log.Info("device advertised")
	case c.Before.Fault.Code == gpu.FaultCordoned:
		log.Info("device uncordoned")
	case c.Before.Fault.None():
		log.Info("device available")
	default:
		log.Info("device recovered")
	}
}
