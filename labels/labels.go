package labels

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
)

// Machine is the label with the product name of the machine. Every node with a GPU has it.
const Machine = gpuPrefix + "machine"

const (
	prefix    = "nvidia.com/"
	gpuPrefix = allocator.GPUResource + "."
)

// MemoryLimits is the label that reports whether memory limits can be set. GPU Feature Discovery has no such label.
const MemoryLimits = "gpucdi.dev/gpu-memory-limits"

// Of returns the labels of a node, or nil if it has no GPUs. machine is the product name of the machine. If the GPUs
// are of several products, the labels describe the product of the first GPU that is not excluded.
func Of(inv *gpu.Inventory, policy allocator.Policy, machine string) map[string]string {
	listed, rules := listedGPUs(inv), policy.Rules
	if len(listed) == 0 {
		return nil
	}
	l := map[string]string{
		Machine:                value(machine, "unknown"),
		gpuPrefix + "mode":     mode(described(listed, rules)),
		prefix + "mig.capable": strconv.FormatBool(migCapable(listed)),
		prefix + "mps.capable": "false", // with true, NVIDIA's MPS daemon would run on the node
	}
	setDriverLabels(l, inv.Driver)
	if clique := clique(listed); clique != "" {
		l[gpuPrefix+"clique"] = clique
	}
	if limits := memoryLimitsOf(listed, rules); limits != "" {
		l[MemoryLimits] = string(limits)
	}
	setIsolationLabels(l, listed, policy)
	setVGPULabels(l, listed)
	setGPULabels(l, listed, rules)
	setMIGLabels(l, listed, policy.MIG, rules)
	return l
}

// listedGPUs returns the GPUs that the driver lists. The inventory keeps those that are gone, which may be in another
// node by now.
func listedGPUs(inv *gpu.Inventory) (listed []gpu.GPU) {
	for _, g := range inv.GPUs {
		if g.Fault.Code != gpu.FaultGone {
			listed = append(listed, g)
		}
	}
	return listed
}

func migCapable(listed []gpu.GPU) bool {
	for _, g := range listed {
		if g.MIG == gpu.MIGDisabled || g.MIG == gpu.MIGEnabled {
			return true
		}
	}
	return false
}

// clique returns the common clique of the GPUs that have one, or "" if they have different ones.
func clique(listed []gpu.GPU) (clique string) {
	for _, g := range listed {
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

// memoryLimitsOf returns gpu.MemoryLimitsSupported if memory limits can be set on any GPU that is not excluded,
// otherwise why they cannot be set on the first such GPU.
func memoryLimitsOf(listed []gpu.GPU, rules allocator.Rules) gpu.MemoryLimits {
	for _, g := range listed {
		if g.MemoryLimits == gpu.MemoryLimitsSupported && !ruleOf(g, rules).Exclude {
			return g.MemoryLimits
		}
	}
	return described(listed, rules).MemoryLimits
}

func setVGPULabels(l map[string]string, listed []gpu.GPU) {
	i := slices.IndexFunc(listed, func(g gpu.GPU) bool { return g.VGPU != nil })
	if i < 0 {
		return
	}
	l[prefix+"vgpu.present"] = "true"
	l[prefix+"vgpu.host-driver-version"] = value(listed[i].VGPU.HostDriver, "")
	l[prefix+"vgpu.host-driver-branch"] = value(listed[i].VGPU.HostBranch, "")
}

// mode returns "graphics" for a GPU with display outputs and "compute" for one without. The PCI class distinguishes
// them.
func mode(g gpu.GPU) string {
	switch g.PCIClass {
	case "0x030000":
		return "graphics"
	case "0x030200":
		return "compute"
	}
	return "unknown"
}

// setDriverLabels sets the versions, and each part of them under its current and its deprecated label. It sets none if
// the CUDA version is unknown: on a Jetson without NVML, the driver version has another meaning.
func setDriverLabels(l map[string]string, d gpu.Driver) {
	if d.CUDA == (gpu.CUDAVersion{}) {
		return
	}
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

// described returns the GPU that the labels describe: the first that is not excluded, or the first if all are.
func described(listed []gpu.GPU, rules allocator.Rules) gpu.GPU {
	i := slices.IndexFunc(listed, func(g gpu.GPU) bool { return !ruleOf(g, rules).Exclude })
	return listed[max(i, 0)]
}

// ruleOf returns the rule of a whole GPU.
func ruleOf(g gpu.GPU, rules allocator.Rules) allocator.Rule {
	rule, _ := rules.Match(g, nil, allocator.GPUResource)
	return rule
}

// setGPULabels sets the labels of whole GPUs. Excluded GPUs do not count.
func setGPULabels(l map[string]string, listed []gpu.GPU, rules allocator.Rules) {
	first, count, shared := described(listed, rules), 0, sharing{}
	for _, g := range listed {
		rule := ruleOf(g, rules)
		if g.Product != first.Product || rule.Exclude {
			continue
		}
		count++
		if g.MIG != gpu.MIGEnabled && shared.replicas == 0 { // a GPU in MIG mode cannot be allocated as a whole
			shared = sharingOf(rule, allocator.GPUResource)
		}
	}
	setResourceLabels(l, allocator.GPUResource, value(first.Product, "unknown"), count, shared)
	if first.MemoryBytes > 0 {
		l[gpuPrefix+"memory"] = strconv.FormatUint(first.MemoryBytes>>20, 10) // MiB
	}
	if c := first.ComputeCapability; c.Major > 0 {
		l[gpuPrefix+"family"] = family(c)
		l[gpuPrefix+"compute.major"] = strconv.Itoa(c.Major)
		l[gpuPrefix+"compute.minor"] = strconv.Itoa(c.Minor)
	}
}

// sharing is how devices are shared.
type sharing struct {
	replicas int  // of each device; 0 if none can be allocated
	mps      bool // the compute time of each replica is limited
	renamed  bool // not advertised under their default resource
}

func sharingOf(rule allocator.Rule, standard string) sharing {
	return sharing{max(1, rule.Replicas), rule.Limits == allocator.LimitMemoryAndCompute, rule.Resource(standard) != standard}
}

// setResourceLabels sets the labels of a resource. If it is shared and not renamed, the product has the suffix -SHARED.
func setResourceLabels(l map[string]string, resource, product string, count int, shared sharing) {
	strategy, under := "none", resource+"."
	switch {
	case shared.replicas <= 1:
	case shared.mps:
		strategy = "mps"
	default:
		strategy = "time-slicing"
	}
	if shared.replicas > 1 && !shared.renamed {
		product = value(product+"-SHARED", "")
	}
	l[under+"product"] = product
	l[under+"count"] = strconv.Itoa(count)
	l[under+"replicas"] = strconv.Itoa(shared.replicas)
	l[under+"sharing-strategy"] = strategy
}

// family returns the architecture that a compute capability implies. The architecture in the inventory may be unknown.
func family(c gpu.ComputeCapability) string {
	names := map[int]string{2: "fermi", 3: "kepler", 5: "maxwell", 6: "pascal", 7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 11: "blackwell", 12: "blackwell"}
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

// valueLimit is the maximum length of a label value.
const valueLimit = 63

// invalidChars are the characters that are not valid in a label value. Spaces are replaced separately.
var invalidChars = regexp.MustCompile(`[^A-Za-z0-9-_. ]`)

// value converts text to a valid label value, which starts and ends with a letter or digit. It returns fallback if
// nothing is left.
func value(text, fallback string) string {
	text = strings.Join(strings.Fields(invalidChars.ReplaceAllString(text, "")), "-")
	text = strings.Trim(text[:min(len(text), valueLimit)], "-_.")
	if text == "" {
		return fallback
	}
	return text
}
