package labels

import (
	"slices"
	"strconv"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
)

// profile is the set of MIG devices with the same profile.
type profile struct {
	product string // of the GPU of first
	first   gpu.MIGDevice
	count   int
}

// setMIGLabels sets the labels of the resources that advertise MIG devices.
func setMIGLabels(l map[string]string, listed []gpu.GPU, strategy allocator.MIGStrategy, rules allocator.Rules) {
	if strategy == allocator.MIGNone {
		return
	}
	l[prefix+"mig.strategy"] = string(strategy)
	all := profiles(listed)
	if strategy == allocator.MIGMixed {
		for _, p := range all {
			p.setLabels(l, allocator.MIGResource(p.first.Profile), rules)
		}
		return
	}
	deciding := decidingGPUs(listed)
	if !slices.ContainsFunc(deciding, func(g gpu.GPU) bool { return g.MIG == gpu.MIGEnabled }) {
		return // whole GPUs are advertised
	}
	found := profiles(deciding)
	if len(found) == 0 || !allocator.NotUniform(&gpu.Inventory{GPUs: deciding}).None() {
		setResourceLabels(l, allocator.Rule{Name: allocator.GPUResource}, value(listed[0].Product+" MIG INVALID", ""), 0, 0)
		l[gpuPrefix+"memory"] = "0"
		return
	}
	// Count the devices of unhealthy GPUs, too.
	i := slices.IndexFunc(all, func(p *profile) bool { return p.first.Profile == found[0].first.Profile })
	all[i].setLabels(l, allocator.GPUResource, rules)
}

// decidingGPUs returns the GPUs that determine what the strategy single advertises: the healthy ones, as in
// allocator.NotUniform. If none is healthy, it returns all GPUs without their faults, so that an outage does not change
// labels.
func decidingGPUs(listed []gpu.GPU) []gpu.GPU {
	healthy := slices.DeleteFunc(slices.Clone(listed), func(g gpu.GPU) bool { return !g.Fault.None() })
	if len(healthy) > 0 {
		return healthy
	}
	all := slices.Clone(listed)
	for i := range all {
		all[i].Fault = gpu.Fault{}
	}
	return all
}

// profiles returns the MIG devices grouped by profile, in the order of the first device of each.
func profiles(listed []gpu.GPU) (found []*profile) {
	byName := map[string]*profile{}
	for _, g := range listed {
		for _, m := range g.MIGDevices {
			if m.Fault.Code == gpu.FaultGone || m.Profile == "" { // no resource advertises devices without a profile
				continue
			}
			if byName[m.Profile] == nil {
				byName[m.Profile] = &profile{product: g.Product, first: m}
				found = append(found, byName[m.Profile])
			}
			byName[m.Profile].count++
		}
	}
	return found
}

// setLabels sets the labels of the resource that advertises the profile.
func (p *profile) setLabels(l map[string]string, resource string, rules allocator.Rules) {
	m, under, rule := p.first, resource+".", rules.Of(resource)
	setResourceLabels(l, rule, value(p.product+" MIG "+m.Profile, ""), p.count, max(1, rule.Replicas))
	l[under+"memory"] = strconv.FormatUint(m.MemoryBytes>>20, 10) // MiB
	for label, n := range map[string]int{
		"multiprocessors": m.Multiprocessors,
		"slices.gi":       m.GPUSlices,
		"slices.ci":       m.ComputeSlices,
		"engines.copy":    m.Engines.Copy,
		"engines.decoder": m.Engines.Decoder,
		"engines.encoder": m.Engines.Encoder,
		"engines.jpeg":    m.Engines.JPEG,
		"engines.ofa":     m.Engines.OFA,
	} {
		l[under+label] = strconv.Itoa(n)
	}
}
