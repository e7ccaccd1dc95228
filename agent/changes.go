package agent

import (
	"fmt"
	"log/slog"
	"reflect"
	"slices"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/runtime"
)

// reportChanges logs the difference between two snapshots, and records Events about it.
func (a *Agent) reportChanges(before, now *snapshot) {
	a.reportConfig(&before.config, &now.config)
	a.reportRuntime(before.runtime, now.runtime)
	logDriver(a.log, before.reading, now.reading)
	if was, is := before.known.Driver.Version, now.known.Driver.Version; was != "" && was != is {
		a.events.Record(cluster.Event{Type: cluster.Normal, Reason: gpuDriverChanged,
			Message: fmt.Sprintf("the NVIDIA driver is now %s, before %s", is, was)})
	}
	if reason := trouble(now.plan.unchecked); reason != "" && reason != trouble(before.plan.unchecked) {
		a.log.Warn("other CDI specs are not checked for conflicts", "reason", reason)
	}
	a.reportDevices(before, now)
}

func (a *Agent) reportConfig(before, now *settings) {
	why := now.trouble()
	if why == "" || why == before.trouble() {
		return
	}
	a.log.Error(now.refusal(), "path", a.cfg.ConfigFile, "err", now.refused)
	a.events.Record(cluster.Event{Type: cluster.Warning, Reason: gpuConfigRefused, Message: why})
}

// reportRuntime logs a runtime that has changed, with an Event if it has a problem.
func (a *Agent) reportRuntime(before, now update[runtime.Info]) {
	if now.err != nil || reflect.DeepEqual(before, now) {
		return
	}
	info := now.value
	if problem := info.Problem(a.cfg.CDIDir); problem != "" {
		a.log.Error(problem, "socket", info.Socket)
		a.events.Record(cluster.Event{Type: cluster.Warning, Reason: runtimeWithoutCDI, Message: problem})
		return
	}
	a.log.Info("container runtime supports CDI", "name", info.Name, "version", info.Version, "socket", info.Socket, "specDirs", info.SpecDirs)
}

func (a *Agent) reportDevices(before, now *snapshot) {
	changes := slices.DeleteFunc(allocator.Changes(before.offers, now.offers), func(c allocator.Change) bool {
		return c.Before.State == "" && c.Now.State == allocator.StateWaiting && c.Now.Fault.None() // what was never there is not missed
	})
	for _, devices := range byFault(changes) {
		a.events.Record(now.event(devices))
	}
	for _, c := range changes {
		g, _ := now.known.Find(c.Now.GPU)
		logDevice(a.log.With("device", c.Now.ID, "resource", c.Resource, "index", c.Now.Index, "product", g.Product), c)
	}
}

// logDriver logs a reading, unless it reports what the one before it reported: where a GPU
// ends the driver worker, there is one every few seconds.
func logDriver(log *slog.Logger, before, now *driver.Reading) {
	switch {
	case before == now || before != nil && sameReading(before, now):
	case noDriver(now.Err):
		log.Warn("no GPU to offer until a driver comes", "reason", now.Err)
	case now.Err != nil:
		log.Error("no GPU to offer until the driver answers", "err", now.Err)
	default:
		log.Info("driver read", summary(now)...)
		for _, u := range now.Inventory.Unreadable {
			log.Error("GPU does not answer and cannot be offered", "index", u.Index, "code", u.Fault.Code, "reason", u.Fault.Message, "remedy", u.Fault.Remedy)
		}
	}
}

func sameReading(before, now *driver.Reading) bool {
	if before.Err != nil || now.Err != nil {
		return trouble(before.Err) == trouble(now.Err)
	}
	return slices.Equal(summary(before), summary(now)) && slices.Equal(before.Inventory.Unreadable, now.Inventory.Unreadable)
}

// summary is a good reading, as logged.
func summary(r *driver.Reading) []any {
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
	case !d.Fault.None():
		log.Error("device is unhealthy", "code", d.Fault.Code, "reason", d.Fault.Message, "remedy", d.Fault.Remedy)
	case d.State == allocator.StateDraining:
		log.Info("device draining", "reason", d.Why)
	case d.State == allocator.StateReleased:
		log.Info("device released")
	case !d.Healthy():
		log.Info("device waiting", "reason", d.Why)
	case c.Before.State == "":
		log.Info("device is offered")
	case c.Before.Fault.None():
		log.Info("device available")
	default:
		log.Info("device is healthy again")
	}
}
