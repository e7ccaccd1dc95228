package agent

import (
	"fmt"
	"strings"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/apiserver"
)

// The reasons of the node's Events.
const (
	gpuUnhealthy      = "GPUUnhealthy"
	gpuHealthy        = "GPUHealthy"
	gpuDriverFailed   = "GPUDriverFailed"
	gpuDriverChanged  = "GPUDriverChanged"
	gpuConfigRefused  = "GPUConfigRefused"
	runtimeWithoutCDI = "RuntimeWithoutCDI"
)

// tell records Events about devices that changed, one for all that share a reason: a driver
// that goes takes all of them with it. Planned changes are none.
func (n *node) tell(changes []allocator.Change) {
	var reasons []string
	devices := map[string][]allocator.Device{}
	for _, c := range changes {
		reason := c.Device.Fault
		if reason == "" && c.From != allocator.StateUnavailable || c.Device.Draining() || c.Device.State == allocator.StateReleased {
			continue
		}
		if devices[reason] == nil {
			reasons = append(reasons, reason)
		}
		devices[reason] = append(devices[reason], c.Device)
	}
	for _, reason := range reasons {
		n.agent.events.Record(n.event(reason, devices[reason]))
	}
}

func (n *node) event(reason string, devices []allocator.Device) apiserver.Event {
	who := n.named(devices)
	if reason == "" {
		return apiserver.Event{Type: apiserver.Normal, Reason: gpuHealthy, Message: who + " healthy again"}
	}
	e := apiserver.Event{Type: apiserver.Warning, Reason: gpuUnhealthy, Message: who + " unhealthy: " + reason}
	if n.driverErr != nil {
		e.Reason = gpuDriverFailed
	}
	if h := n.verdict(devices[0]); h.Reason == reason {
		e.Message += "; recovers after " + h.Heals
	}
	return e
}

// named names devices as the subject of a sentence.
func (n *node) named(devices []allocator.Device) string {
	of, are := "", "is"
	if d := devices[0]; d.Left() && d.Shared() {
		of, are = "replicas of ", "are" // others of it may be healthy
	}
	if d := devices[0]; len(devices) == 1 {
		g, _ := n.known.Find(d.GPU)
		return fmt.Sprintf("%sGPU %s (%s, %s) %s", of, d.Index, g.Product, d.ID, are)
	}
	var indexes []string
	for _, d := range devices {
		indexes = append(indexes, d.Index)
	}
	return of + "GPUs " + strings.Join(indexes, ", ") + " are"
}
