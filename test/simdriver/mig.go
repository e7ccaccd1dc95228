package simdriver

import (
	"fmt"
	"slices"
	"strings"
)

// firstInstance is the first GPU instance ID by memory slices: 0 is the whole
// GPU, 1 and 2 are the halves, 3 to 6 the quarters, 7 to 14 the eighths.
var firstInstance = map[int]int{8: 0, 4: 1, 2: 3, 1: 7}

// partition enables MIG mode and partitions the GPU into GPU instances by
// profile, with one compute instance each ("2c.3g.20gb": a smaller one).
func partition(g *GPU, profiles []string) error {
	var used [8]bool
	ids := map[int]bool{}
	var devices []MIGDevice
	for _, name := range profiles {
		compute, profile, err := parseMIG(g, name)
		if err != nil {
			return err
		}
		start, ok := place(&used, profile)
		if !ok {
			return fmt.Errorf("no free placement for %s on %s with profiles %s", name, g.Name, strings.Join(profiles, ", "))
		}
		gi := firstInstance[profile.Size]
		for ids[gi] {
			gi++
		}
		ids[gi] = true
		devices = append(devices, MIGDevice{
			UUID:        uuid("MIG", fmt.Sprintf("%s/%d/%d/0", g.UUID, gi, profile.ID)),
			GPUInstance: gi, Profile: profile.Index, Start: start, ComputeSlices: compute,
		})
	}
	slices.SortFunc(devices, func(a, b MIGDevice) int { return a.GPUInstance - b.GPUInstance })
	g.MIGMode, g.MIGPending, g.MIG = 1, 1, devices
	return nil
}

// Profiles returns the profiles of the GPU's MIG devices, as Driver.Partition takes them.
func (g GPU) Profiles() (names []string) {
	for _, m := range g.MIG {
		for _, p := range migProfiles[g.Name] {
			switch {
			case p.Index != m.Profile:
			case p.Slices != m.ComputeSlices:
				names = append(names, fmt.Sprintf("%dc.%s", m.ComputeSlices, p.Name))
			default:
				names = append(names, p.Name)
			}
		}
	}
	return names
}

func parseMIG(g *GPU, name string) (compute int, p migProfile, err error) {
	prefix, rest, hasPrefix := strings.Cut(name, "c.")
	if !hasPrefix {
		rest = name
	}
	i := slices.IndexFunc(migProfiles[g.Name], func(p migProfile) bool { return p.Name == rest })
	if i < 0 {
		var known []string
		for _, p := range migProfiles[g.Name] {
			known = append(known, p.Name)
		}
		return 0, p, fmt.Errorf("%s has no MIG profile %q; its profiles: %s", g.Name, name, strings.Join(known, ", "))
	}
	p = migProfiles[g.Name][i]
	compute = p.Slices
	if hasPrefix {
		if _, err := fmt.Sscanf(prefix, "%d", &compute); err != nil || compute < 1 || compute >= p.Slices {
			return 0, p, fmt.Errorf("%s: no such compute instance profile in %s", name, rest)
		}
	}
	return compute, p, nil
}

// place allocates contiguous memory slices. A GPU instance starts at a multiple of
// its size. An instance with 3 compute slices is placed at the end, so that the
// rest stays contiguous.
func place(used *[8]bool, p migProfile) (start int, ok bool) {
	starts := p.Instances
	if p.Size == 1 { // also 1g+me, of which there is one instance
		starts = 7
	}
	for i := range starts {
		if p.Slices == 3 {
			i = starts - 1 - i
		}
		run := used[i*p.Size : (i+1)*p.Size]
		if !slices.Contains(run, true) {
			for j := range run {
				run[j] = true
			}
			return i * p.Size, true
		}
	}
	return 0, false
}

// Minor numbers of MIG capabilities are static: 15 GPU instances per GPU, each
// with its own access node and the access nodes of 8 compute instances.
const (
	capsConfig, capsMonitor = 1, 2
	capsInstances           = 15
	capsCompute             = 8
)

func giMinor(gpu, gi int) int     { return 3 + (gpu*capsInstances+gi)*(capsCompute+1) }
func ciMinor(gpu, gi, ci int) int { return giMinor(gpu, gi) + 1 + ci }

// migMinors returns /proc/driver/nvidia-caps/mig-minors, which lists all possible
// instances.
func migMinors() string {
	var b strings.Builder
	fmt.Fprintf(&b, "config %d\nmonitor %d\n", capsConfig, capsMonitor)
	for gpu := range 32 {
		for gi := range capsInstances {
			fmt.Fprintf(&b, "gpu%d/gi%d/access %d\n", gpu, gi, giMinor(gpu, gi))
			for ci := range capsCompute {
				fmt.Fprintf(&b, "gpu%d/gi%d/ci%d/access %d\n", gpu, gi, ci, ciMinor(gpu, gi, ci))
			}
		}
	}
	return b.String()
}
