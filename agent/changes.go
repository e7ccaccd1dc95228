package agent

import (
	"log/slog"
	"slices"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu/driver"
)

// logChanges logs the difference between two snapshots.
func (a *Agent) logChanges(before, now *snapshot) {
	if why := now.config.trouble(); why != "" && why != before.config.trouble() {
		a.log.Error(now.config.refusal(), "path", a.cfg.ConfigFile, "err", now.config.refused)
	}
	logDriver(a.log, before.reading, now.reading)
	if reason := trouble(now.plan.unchecked); reason != "" && reason != trouble(before.plan.unchecked) {
		a.log.Warn("other CDI specs are not checked for conflicts", "reason", reason)
	}
	for _, c := range deviceChanges(before, now) {
		logDevice(a.log, now, c)
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

// deviceChanges returns what became of each device.
func deviceChanges(before, now *snapshot) []allocator.Change {
	return slices.DeleteFunc(allocator.Changes(before.offers, now.offers), func(c allocator.Change) bool {
		return c.Before.State == "" && c.Now.State == allocator.StateWaiting && c.Now.Fault.None() // what was never there is not missed
	})
}

func logDevice(log *slog.Logger, now *snapshot, c allocator.Change) {
	d := c.Now
	g, _ := now.known.Find(d.GPU)
	log = log.With("device", d.ID, "resource", c.Resource, "index", d.Index, "product", g.Product)
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
