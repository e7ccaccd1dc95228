package labels

import (
	"strconv"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/config"
)

// part is the MIG devices of one profile.
type part struct {
	product string // of the first one's GPU
	first   gpu.MIGDevice
	count   int
}

// parts tells the MIG devices, each profile under the resource that it is
// offered under.
func parts(l map[string]string, here []gpu.GPU, strategy config.MIGStrategy, rules config.Resources) {
	if strategy == config.MIGNone {
		return
	}
	l[prefix+"mig.strategy"] = string(strategy)
	found, cut, empty := profiles(here)
	switch {
	case strategy == config.MIGMixed:
		for _, p := range found {
			p.tell(l, allocator.MIGResource(p.first.Profile), rules)
		}
	case cut == 0: // then it is as without a strategy
	case cut < len(here) || empty || len(found) != 1:
		resource(l, config.Resource{Name: allocator.GPUResource}, value(here[0].Product+" MIG INVALID", ""), 0, 0)
		l[gpus+"memory"] = "0"
	default:
		found[0].tell(l, allocator.GPUResource, rules)
	}
}

// profiles returns the MIG devices by profile, how many GPUs are in MIG mode,
// and whether one of these has no MIG device.
func profiles(here []gpu.GPU) (found []*part, cut int, empty bool) {
	known := map[string]*part{}
	for _, g := range here {
		if g.MIG != gpu.MIGEnabled {
			continue
		}
		cut++
		count := 0
		for _, m := range g.MIGDevices {
			if m.Fault == gpu.FaultGone {
				continue
			}
			count++
			if known[m.Profile] == nil {
				known[m.Profile] = &part{product: g.Product, first: m}
				found = append(found, known[m.Profile])
			}
			known[m.Profile].count++
		}
		empty = empty || count == 0
	}
	return found, cut, empty
}

// tell tells them as what a resource has.
func (p *part) tell(l map[string]string, of string, rules config.Resources) {
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
