package labels

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
)

// Always is a label that every node with a GPU has.
const Always = gpus + "machine"

const (
	prefix = "nvidia.com/"
	gpus   = allocator.GPUResource + "."
)

// Of returns the labels of a node with these GPUs; none when it has none.
// strategy is how MIG devices are offered, rules say what is shared, machine what
// the firmware calls the node. Of GPUs of several products, the first one's is
// told.
func Of(inv *gpu.Inventory, strategy allocator.MIGStrategy, rules allocator.Rules, machine string) map[string]string {
	here := present(inv)
	if len(here) == 0 {
		return nil
	}
	l := map[string]string{
		Always:                 value(machine, "unknown"),
		gpus + "mode":          mode(here[0]),
		prefix + "mig.capable": strconv.FormatBool(migCapable(here)),
		prefix + "mps.capable": "false",
	}
	driver(l, inv.Driver)
	if clique := clique(here); clique != "" {
		l[gpus+"clique"] = clique
	}
	virtual(l, here)
	whole(l, here, rules)
	parts(l, here, strategy, rules)
	return l
}

// present are the GPUs that the driver lists; a retained one may be in another
// node by now.
func present(inv *gpu.Inventory) (here []gpu.GPU) {
	for _, g := range inv.GPUs {
		if g.Fault.Code != gpu.FaultGone {
			here = append(here, g)
		}
	}
	return here
}

func migCapable(here []gpu.GPU) bool {
	for _, g := range here {
		if g.MIG == gpu.MIGDisabled || g.MIG == gpu.MIGEnabled {
			return true
		}
	}
	return false
}

// clique is that of all GPUs that are in one; empty when they differ.
func clique(here []gpu.GPU) (clique string) {
	for _, g := range here {
		switch {
		case g.Clique == "":
		case clique != "" && clique != g.Clique:
			return ""
		default:
			clique = g.Clique
		}
	}
	return clique
}

// virtual tells that there is a virtual GPU, and the host's driver.
func virtual(l map[string]string, here []gpu.GPU) {
	i := slices.IndexFunc(here, func(g gpu.GPU) bool { return g.VGPU != nil })
	if i < 0 {
		return
	}
	l[prefix+"vgpu.present"] = "true"
	l[prefix+"vgpu.host-driver-version"] = value(here[i].VGPU.HostDriver, "")
	l[prefix+"vgpu.host-driver-branch"] = value(here[i].VGPU.HostBranch, "")
}

// mode is by the PCI class, which tells whether displays can be plugged in.
func mode(g gpu.GPU) string {
	switch g.PCIClass {
	case "0x030000":
		return "graphics"
	case "0x030200":
		return "compute"
	}
	return "unknown"
}

// driver tells the versions, each under an old name too.
func driver(l map[string]string, d gpu.Driver) {
	parts := append(strings.SplitN(d.Version, ".", 3), "", "")
	for i, names := range [][2]string{{"major", "major"}, {"minor", "minor"}, {"revision", "rev"}} {
		l[prefix+"cuda.driver-version."+names[0]] = value(parts[i], "")
		l[prefix+"cuda.driver."+names[1]] = value(parts[i], "")
	}
	l[prefix+"cuda.driver-version.full"] = value(d.Version, "")
	for name, n := range map[string]int{"major": d.CUDA.Major, "minor": d.CUDA.Minor} {
		l[prefix+"cuda.runtime-version."+name] = strconv.Itoa(n)
		l[prefix+"cuda.runtime."+name] = strconv.Itoa(n)
	}
	l[prefix+"cuda.runtime-version.full"] = d.CUDA.String()
}

// whole tells the product, and how many there are of it.
func whole(l map[string]string, here []gpu.GPU, rules allocator.Rules) {
	rule, first, count, replicas := rules.Of(allocator.GPUResource), here[0], 0, 0
	for _, g := range here {
		if g.Product != first.Product {
			continue
		}
		count++
		if g.MIG != gpu.MIGEnabled { // one that is cut cannot be had as a whole
			replicas = max(1, rule.Replicas)
		}
	}
	resource(l, rule, value(first.Product, "unknown"), count, replicas)
	if first.MemoryBytes > 0 {
		l[gpus+"memory"] = strconv.FormatUint(first.MemoryBytes>>20, 10) // MiB
	}
	if c := first.ComputeCapability; c.Major > 0 {
		l[gpus+"family"] = family(c)
		l[gpus+"compute.major"] = strconv.Itoa(c.Major)
		l[gpus+"compute.minor"] = strconv.Itoa(c.Minor)
	}
}

// resource tells what there is of a resource, and how many pods at a time may
// have one. A product that is shared is another, unless its resource is.
func resource(l map[string]string, rule allocator.Rule, product string, count, replicas int) {
	strategy, under := "none", rule.Name+"."
	if replicas > 1 {
		strategy = "time-slicing"
	}
	if replicas > 1 && rule.Rename == "" {
		product = value(product+"-SHARED", "")
	}
	l[under+"product"] = product
	l[under+"count"] = strconv.Itoa(count)
	l[under+"replicas"] = strconv.Itoa(replicas)
	l[under+"sharing-strategy"] = strategy
}

// family is the generation, by the compute capability: gpu.Architecture is the
// driver's word, which an old driver does not have for a new GPU.
func family(c gpu.ComputeCapability) string {
	names := map[int]string{2: "fermi", 3: "kepler", 5: "maxwell", 6: "pascal", 7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell"}
	switch name := names[c.Major]; {
	case c.Major == 7 && c.Minor >= 5:
		return "turing"
	case c.Major == 8 && c.Minor >= 9:
		return "ada-lovelace"
	case name == "":
		return "undefined"
	default:
		return name
	}
}

// A label's value is at most 63 letters, digits, "-", "_" and ".", and begins
// and ends with a letter or a digit.
const valueLimit = 63

var noValue = regexp.MustCompile(`[^A-Za-z0-9-_. ]`)

// value writes text as a label can hold it, or gives what stands for none.
func value(text, none string) string {
	text = strings.Join(strings.Fields(noValue.ReplaceAllString(text, "")), "-")
	text = strings.Trim(text[:min(len(text), valueLimit)], "-_.")
	if text == "" {
		return none
	}
	return text
}
