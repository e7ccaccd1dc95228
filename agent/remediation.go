package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
)

// defect is a fault of a GPU or MIG device that requires remediation.
type defect struct {
	index, uuid string
	gpu.Fault
}

// marks returns the condition and the taint that the Node should have, and when they may change without a new snapshot;
// zero: never. It returns false while the GPUs are unknown, for example after the start of the agent, or while no
// config is in effect: the Node then keeps its marks.
func (s *snapshot) marks(now time.Time) (want cluster.Marks, due time.Time, known bool) {
	r := s.config.Remediation
	switch {
	case !s.config.fault.None(): // no config is in effect
		return cluster.Marks{}, time.Time{}, false
	case !r.Enabled():
		return cluster.Marks{}, time.Time{}, true
	}
	if s.driver == nil || s.offers == nil || s.driver.Err != nil && len(s.known.GPUs) == 0 && !noDriver(s.driver.Err) {
		return cluster.Marks{}, time.Time{}, false
	}
	var lasting []defect
	for _, d := range s.defects() {
		if at := d.Since.Add(r.After); at.After(now) {
			due = earliest(due, at)
			continue
		}
		lasting = append(lasting, d)
	}
	if len(s.known.GPUs) == 0 && len(lasting) == 0 {
		return cluster.Marks{}, due, true // a node without GPUs
	}
	if r.NodeCondition {
		want.Condition = condition(lasting)
	}
	if len(lasting) > 0 && r.Taint != config.NodeTaintNone {
		want.Taint = &cluster.NodeTaint{Value: string(lasting[0].Code), Effect: string(r.Taint)}
	}
	return want, due, true
}

func condition(lasting []defect) *cluster.Condition {
	if len(lasting) == 0 {
		return &cluster.Condition{Healthy: true, Reason: "GPUsHealthy", Message: "no GPU has a fault that requires remediation"}
	}
	var texts []string
	for _, d := range lasting {
		texts = append(texts, fmt.Sprintf("GPU %s (%s): %s", cmp.Or(d.index, "-"), d.uuid, d.Fault))
	}
	return &cluster.Condition{Reason: "GPUFault", Message: strings.Join(texts, "; ")}
}

// defects returns the faults that the config selects, of all devices that are not excluded, by start time. It omits
// faults without a start time. In the offers, a fault of the node replaces the faults of devices; defects returns both.
func (s *snapshot) defects() (all []defect) {
	policy := health.Policy{Ignore: s.config.Health.XIDs.Ignore, Fatal: s.config.Health.XIDs.Fatal}
	add := func(index, uuid string, f gpu.Fault) {
		same := func(d defect) bool { return d.uuid == uuid && d.Code == f.Code }
		if !f.Since.IsZero() && policy.Selects(s.config.Remediation.Faults, f.Code) && !slices.ContainsFunc(all, same) {
			all = append(all, defect{index, uuid, f})
		}
	}
	s.eachFault(add)
	for _, r := range s.offers {
		for _, d := range r.Devices {
			if !slices.ContainsFunc(all, func(a defect) bool { return a.uuid == d.GPU && a.Code == d.Fault.Code }) {
				add(d.Index, d.ID, d.Fault)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b defect) int { return a.Since.Compare(b.Since) })
	return all
}

// eachFault calls add for each fault of a GPU, and each fault of a MIG device of a GPU without one. Excluded devices do
// not count.
func (s *snapshot) eachFault(add func(index, uuid string, f gpu.Fault)) {
	excluded := s.config.Policy().Excluded(s.plan.deviceFaults)
	for _, g := range s.plan.deviceFaults.GPUs {
		if slices.Contains(excluded, g.UUID) {
			continue
		}
		if !g.Fault.None() {
			add(fmt.Sprint(g.Index), g.UUID, g.Fault)
			continue
		}
		for _, m := range g.MIGDevices {
			if !slices.Contains(excluded, m.UUID) {
				add(fmt.Sprintf("%d:%d", g.Index, m.Index), m.UUID, m.Fault)
			}
		}
	}
}
