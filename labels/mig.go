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
	sharing sharing // of first
	count   int
}

// setMIGLabels sets the labels of the resources that advertise MIG devices.
func setMIGLabels(l map[string]string, listed []gpu.GPU, strategy allocator.MIGStrategy, rules allocator.Rules) {
	if strategy == allocator.MIGNone {
		return
	}
	l[prefix+"mig.strategy"] = string(strategy)
	all := profiles(listed, strategy, rules)
	if strategy == allocator.MIGMixed {
		for _, p := range all {
			p.setLabels(l, allocator.MIGResource(p.first.Profile))
		}
		return
	}
	deciding := decidingGPUs(listed, rules)
	partitioned := func(g gpu.GPU) bool { return g.MIG == gpu.MIGEnabled }
	whole := func(g gpu.GPU) bool { return !partitioned(g) && !ruleOf(g, rules).Removes(allocator.GPUResource) }
	uniform := allocator.NotUniform(&gpu.Inventory{GPUs: deciding}, rules).None()
	if uniform && slices.ContainsFunc(deciding, whole) || !slices.ContainsFunc(deciding, partitioned) {
		return // whole GPUs are advertised
	}
	found := profiles(deciding, strategy, rules)
	if len(found) == 0 || !uniform {
		setResourceLabels(l, allocator.GPUResource, value(deciding[0].Product+" MIG INVALID", ""), 0, sharing{})
		l[gpuPrefix+"memory"] = "0"
		return
	}
	// Count the devices of unhealthy GPUs, too.
	i := slices.IndexFunc(all, func(p *profile) bool { return p.first.Profile == found[0].first.Profile })
	all[i].setLabels(l, allocator.GPUResource)
}

// decidingGPUs returns the GPUs that determine the resources of the strategy single: the healthy ones that rules do not
// exclude, as in allocator.NotUniform. If none is healthy, it returns the unhealthy ones without their faults, so that
// an outage does not change labels.
func decidingGPUs(listed []gpu.GPU, rules allocator.Rules) []gpu.GPU {
	all := slices.DeleteFunc(slices.Clone(listed), func(g gpu.GPU) bool { return ruleOf(g, rules).Exclude })
	healthy := slices.DeleteFunc(slices.Clone(all), func(g gpu.GPU) bool { return !g.Fault.None() })
	if len(healthy) > 0 {
		return healthy
	}
	for i := range all {
		all[i].Fault = gpu.Fault{}
	}
	return all
}

// profiles returns the MIG devices that keep their default resource, grouped by profile, in the order of the first
// device of each.
func profiles(listed []gpu.GPU, strategy allocator.MIGStrategy, rules allocator.Rules) (found []*profile) {
	byName := map[string]*profile{}
	for _, g := range listed {
		for _, m := range g.MIGDevices {
			if m.Fault.Code == gpu.FaultGone || m.Profile == "" { // no resource advertises devices without a profile
				continue
			}
			standard := standardResource(m, strategy)
			rule, _ := rules.Match(g, &m, standard)
			if rule.Removes(standard) {
				continue
			}
			if byName[m.Profile] == nil {
				byName[m.Profile] = &profile{product: g.Product, first: m, sharing: sharingOf(rule, standard)}
				found = append(found, byName[m.Profile])
			}
			byName[m.Profile].count++
		}
	}
	return found
}

// standardResource returns the default resource of a MIG device.
func standardResource(m gpu.MIGDevice, strategy allocator.MIGStrategy) string {
	if strategy == allocator.MIGSingle {
		return allocator.GPUResource
	}
	return allocator.MIGResource(m.Profile)
}

// setLabels sets the labels of the resource that advertises the profile.
func (p *profile) setLabels(l map[string]string, resource string) {
	m, under := p.first, resource+"."
	setResourceLabels(l, resource, value(p.product+" MIG "+m.Profile, ""), p.count, p.sharing)
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
