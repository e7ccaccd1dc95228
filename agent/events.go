package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
)

// Reasons of Events on the Node.
const (
	gpuUnhealthy      = "GPUUnhealthy"
	gpuHealthy        = "GPUHealthy"
	gpuCordoned       = "GPUCordoned"
	gpuMoved          = "GPUMoved"
	gpuDriverFailed   = "GPUDriverFailed"
	gpuDriverChanged  = "GPUDriverChanged"
	gpuConfigRefused  = "GPUConfigRefused"
	runtimeWithoutCDI = "RuntimeWithoutCDI"
	podWithoutGPU     = "PodWithoutGPU"
)

// Reasons of Events on a ResourceClaim.
const (
	coresNotEnforced = "CoresNotEnforced"
	claimNotPrepared = "ClaimNotPrepared"
)

// groupByFault returns the devices that got or lost a fault, grouped by fault, so that the removal of the driver is
// one Event. It omits devices that wait or drain without a fault, and the monitor, because each of its faults is
// also a fault of a GPU.
func groupByFault(changes []allocator.Change) (groups [][]allocator.Device) {
	for _, c := range changes {
		if c.Now.ID == allocator.MonitorID || c.Now.Fault.None() && (c.Before.Fault.None() || !c.Now.Healthy()) {
			continue
		}
		i := slices.IndexFunc(groups, func(g []allocator.Device) bool { return g[0].Fault.Same(c.Now.Fault) })
		if i < 0 {
			i, groups = len(groups), append(groups, nil)
		}
		groups[i] = append(groups[i], c.Now)
	}
	return groups
}

// moved returns an Event for each outlet (a plugin resource or the slices) with devices that became available after
// another outlet released them. It returns none while DRA is disabled.
func (s *snapshot) moved(before []*allocator.Resource, changes []allocator.Change) (events []cluster.Event) {
	if s.claims == nil {
		return nil
	}
	byOutlet := map[string][]allocator.Device{}
	for _, c := range changes {
		if c.Before.State == allocator.StateWaiting && c.Now.State == allocator.StateAvailable && offeredElsewhere(before, c) {
			byOutlet[c.Resource] = append(byOutlet[c.Resource], c.Now)
		}
	}
	for _, outlet := range slices.Sorted(maps.Keys(byOutlet)) {
		events = append(events, cluster.Event{Type: cluster.Normal, Reason: gpuMoved,
			Message: s.subject(byOutlet[outlet]) + " now allocated through " + s.outletName(outlet)})
	}
	return events
}

// offeredElsewhere reports whether an outlet other than that of a change lists its device.
func offeredElsewhere(offers []*allocator.Resource, c allocator.Change) bool {
	return slices.ContainsFunc(offers, func(r *allocator.Resource) bool {
		return r.Name != c.Resource && slices.ContainsFunc(r.Devices, func(d allocator.Device) bool { return d.ID == c.Now.ID })
	})
}

// outletName returns the name of an outlet for Events, logs and the status.
func (s *snapshot) outletName(outlet string) string {
	if outlet == allocator.SliceOutlet {
		return s.claims.name()
	}
	return outlet
}

// event returns the Event for devices with the same fault, or for recovered ones.
func (s *snapshot) event(devices []allocator.Device) cluster.Event {
	subject, fault := s.subject(devices), devices[0].Fault
	switch fault.Code {
	case "":
		return cluster.Event{Type: cluster.Normal, Reason: gpuHealthy, Message: subject + " healthy again"}
	case gpu.FaultCordoned:
		return cluster.Event{Type: cluster.Normal, Reason: gpuCordoned, Message: subject + " " + fault.String()}
	case gpu.FaultDriver:
		return cluster.Event{Type: cluster.Warning, Reason: gpuDriverFailed, Message: subject + " unhealthy: " + fault.String()}
	}
	return cluster.Event{Type: cluster.Warning, Reason: gpuUnhealthy, Message: subject + " unhealthy: " + fault.String()}
}

// subject returns the subject and verb of a sentence about devices.
func (s *snapshot) subject(devices []allocator.Device) string {
	prefix, verb := "", "is"
	if d := devices[0]; d.State == allocator.StateDraining && d.Shared() {
		prefix, verb = "replicas of ", "are" // its other replicas may be healthy
	}
	if d := devices[0]; len(devices) == 1 {
		g, _ := s.known.Find(d.GPU)
		return fmt.Sprintf("%sGPU %s (%s, %s) %s", prefix, d.Index, g.Product, d.ID, verb)
	}
	var indexes []string
	for _, d := range devices {
		indexes = append(indexes, d.Index)
	}
	return prefix + "GPUs " + strings.Join(indexes, ", ") + " are"
}
