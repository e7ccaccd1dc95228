package labels

import (
	"slices"
	"strconv"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
)

// part is the MIG devices of one profile.
type part struct {
	product string // of the first one's GPU
	first   gpu.MIGDevice
	count   int
}

// parts adds the labels of the MIG devices, each profile under the resource that it is
// advertised as.
func parts(l map[string]string, here []gpu.GPU, strategy allocator.MIGStrategy, rules allocator.Rules) {
	if strategy == allocator.MIGNone {
		return
	}
	l[prefix+"mig.strategy"] = string(strategy)
	all := profiles(here)
	if strategy == allocator.MIGMixed {
		for _, p := range all {
			p.tell(l, allocator.MIGResource(p.first.Profile), rules)
		}
		return
	}
	deciding := deciding(here)
	if !slices.ContainsFunc(deciding, func(g gpu.GPU) bool { return g.MIG == gpu.MIGEnabled }) {
		return // single advertises whole GPUs then
	}
	found := profiles(deciding)
	if len(found) == 0 || !allocator.NotUniform(&gpu.Inventory{GPUs: deciding}).None() {
		resource(l, allocator.Rule{Name: allocator.GPUResource}, value(here[0].Product+" MIG INVALID", ""), 0, 0)
		l[gpus+"memory"] = "0"
		return
	}
	// Its devices on GPUs with a fault are listed, too.
	i := slices.IndexFunc(all, func(p *part) bool { return p.first.Profile == found[0].first.Profile })
	all[i].tell(l, allocator.GPUResource, rules)
}

// deciding returns the GPUs that decide what the strategy single advertises: the healthy
// ones, as in allocator.NotUniform. Where none is healthy it returns all of them, as if they
// were, so that an outage changes no label.
func deciding(here []gpu.GPU) []gpu.GPU {
	healthy := slices.DeleteFunc(slices.Clone(here), func(g gpu.GPU) bool { return !g.Fault.None() })
	if len(healthy) > 0 {
		return healthy
	}
	all := slices.Clone(here)
	for i := range all {
		all[i].Fault = gpu.Fault{}
	}
	return all
}

// profiles returns the MIG devices by profile, in the order of their first devices.
func profiles(here []gpu.GPU) (found []*part) {
	known := map[string]*part{}
	for _, g := range here {
		for _, m := range g.MIGDevices {
			if m.Fault.Code == gpu.FaultGone || m.Profile == "" { // no resource advertises the latter
				continue
			}
			if known[m.Profile] == nil {
				known[m.Profile] = &part{product: g.Product, first: m}
				found = append(found, known[m.Profile])
			}
			known[m.Profile].count++
		}
	}
	return found
}

// tell tells them as what a resource has.
func (p *part) tell(l map[string]string, of string, rules allocator.Rules) {
	m, under, rule := p.first, of+".", rules.Of(of)
	resource(l, rule, value(p.product+" MIG "+m.Profile, ""), p.count, max(1, rule.Replicas))
	l[under+"memory"] = strconv.FormatUint(m.MemoryBytes>>20, 10) // MiB
	for name, n := range map[string]int{
		"multiprocessors": m.Multiprocessors,
		"slices.gi":       m.GPUSlices,
		"slices.ci":       m.ComputeSlices,
		"engines.copy":    m.Engines.Copy,
		"engines.decoder": m.Engines.Decoder,
		"engines.encoder": m.Engines.Encoder,
		"engines.jpeg":    m.Engines.JPEG,
		"engines.ofa":     m.Engines.OFA,
	} {
		l[under+name] = strconv.Itoa(n)
	}
}
