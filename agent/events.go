package agent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
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

// byFault returns the devices that got or lost a fault, in groups of those that share it: a driver that
// goes takes all of them with it. Planned changes are none.
func byFault(changes []allocator.Change) (groups [][]allocator.Device) {
	for _, c := range changes {
		if c.Now.Fault.None() && (c.Before.Fault.None() || !c.Now.Healthy()) {
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

// event is about devices that have the same fault, or none any more.
func (s *snapshot) event(devices []allocator.Device) cluster.Event {
	who, fault := s.named(devices), devices[0].Fault
	switch fault.Code {
	case "":
		return cluster.Event{Type: cluster.Normal, Reason: gpuHealthy, Message: who + " healthy again"}
	case gpu.FaultDriver:
		return cluster.Event{Type: cluster.Warning, Reason: gpuDriverFailed, Message: who + " unhealthy: " + fault.String()}
	}
	return cluster.Event{Type: cluster.Warning, Reason: gpuUnhealthy, Message: who + " unhealthy: " + fault.String()}
}

// named names devices as the subject of a sentence.
func (s *snapshot) named(devices []allocator.Device) string {
	of, are := "", "is"
	if d := devices[0]; d.State == allocator.StateDraining && d.Shared() {
		of, are = "replicas of ", "are" // others of it may be healthy
	}
	if d := devices[0]; len(devices) == 1 {
		g, _ := s.known.Find(d.GPU)
		return fmt.Sprintf("%sGPU %s (%s, %s) %s", of, d.Index, g.Product, d.ID, are)
	}
	var indexes []string
	for _, d := range devices {
		indexes = append(indexes, d.Index)
	}
	return of + "GPUs " + strings.Join(indexes, ", ") + " are"
}
