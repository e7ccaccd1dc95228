package allocator

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpucdi/gpucdi/gpu"
)

// Selector selects devices by their properties. All keys that are set must match. It selects MIG devices if MIG is set
// or UUID contains one of a MIG device, and otherwise GPUs. For a MIG device, MIG and Memory compare its own
// properties, UUID compares its own and that of its GPU, and the other keys compare those of its GPU.
//
// Globs are as in path.Match and ignore case.
type Selector struct {
	Product           string     `yaml:"product"`           // glob for the product name, such as *H100*
	Architecture      string     `yaml:"architecture"`      // name of the architecture, such as Hopper; case is ignored
	ComputeCapability Comparison `yaml:"computeCapability"` // comparisons with the CUDA compute capability, such as ">=8.0"
	Memory            Comparison `yaml:"memory"`            // comparisons with the memory size in Mi, Gi or Ti, such as ">=16Gi, <40Gi"
	Index             []int      `yaml:"index"`             // indexes of GPUs, which change when a GPU is removed; prefer uuid or pci
	UUID              []string   `yaml:"uuid"`              // globs for UUIDs of GPUs or MIG devices
	PCI               []string   `yaml:"pci"`               // globs for PCI bus IDs, such as 0000:18:00.0
	MIG               string     `yaml:"mig"`               // glob for MIG profiles, such as 1g.10gb or *
}

// Comparison is a comma-separated list of comparisons that must all hold. Each is an operator (<, <=, =, >= or >) and a
// value.
type Comparison string

// IsZero reports whether no key is set.
func (s Selector) IsZero() bool {
	return s.Product == "" && s.Architecture == "" && s.ComputeCapability == "" && s.Memory == "" &&
		s.Index == nil && s.UUID == nil && s.PCI == nil && s.MIG == ""
}

// selectsMIG reports whether the selector selects MIG devices, not GPUs.
func (s Selector) selectsMIG() bool {
	return s.MIG != "" || slices.ContainsFunc(s.UUID, func(uuid string) bool { return strings.HasPrefix(strings.ToUpper(uuid), "MIG-") })
}

func (s Selector) matchesGPU(g gpu.GPU) bool {
	return !s.selectsMIG() && s.matches(g, g.MemoryBytes, g.UUID)
}

func (s Selector) matchesMIG(g gpu.GPU, m gpu.MIGDevice) bool {
	return s.selectsMIG() && (s.MIG == "" || glob(s.MIG, m.Profile)) && s.matches(g, m.MemoryBytes, g.UUID, m.UUID)
}

// matches compares all keys but MIG. For a MIG device, uuids are its own and that of its GPU.
func (s Selector) matches(g gpu.GPU, memory uint64, uuids ...string) bool {
	capability, _ := s.ComputeCapability.parse(parseCapability)
	size, _ := s.Memory.parse(parseMemory)
	hasUUID := slices.ContainsFunc(uuids, func(uuid string) bool { return matchesAny(s.UUID, uuid) })
	return (s.Product == "" || glob(s.Product, g.Product)) &&
		(s.Architecture == "" || strings.EqualFold(s.Architecture, string(g.Architecture))) &&
		capability.holds(capabilityValue(g.ComputeCapability)) && size.holds(float64(memory)) &&
		(s.Index == nil || slices.Contains(s.Index, g.Index)) && hasUUID && matchesAny(s.PCI, g.PCIBusID)
}

// matchesAny reports whether one of the globs matches, or there are none.
func matchesAny(globs []string, value string) bool {
	return globs == nil || slices.ContainsFunc(globs, func(pattern string) bool { return glob(pattern, value) })
}

// glob reports whether a valid glob matches a value.
func glob(pattern, value string) bool {
	matched, _ := path.Match(globText(pattern), globText(value))
	return matched
}

// globText returns text in lower case and with its slashes replaced: product names can contain slashes, but * does not
// match them.
func globText(text string) string { return strings.ReplaceAll(strings.ToLower(text), "/", "\x00") }

// bounds are the parsed comparisons of a Comparison.
type bounds []bound

type bound struct {
	operator string
	value    float64
}

// operators in the order in which they are tried.
var operators = []string{"<=", ">=", "<", ">", "="}

// parse parses the comparisons, and their values with parseValue.
func (c Comparison) parse(parseValue func(text string) (float64, bool)) (bounds, error) {
	if c == "" {
		return nil, nil
	}
	var all bounds
	for text := range strings.SplitSeq(string(c), ",") {
		text = strings.TrimSpace(text)
		i := slices.IndexFunc(operators, func(o string) bool { return strings.HasPrefix(text, o) })
		if i < 0 {
			return nil, fmt.Errorf("%q has no operator", text)
		}
		v, ok := parseValue(strings.TrimSpace(text[len(operators[i]):]))
		if !ok {
			return nil, fmt.Errorf("%q has an invalid value", text)
		}
		all = append(all, bound{operators[i], v})
	}
	return all, nil
}

// holds reports whether all comparisons hold for a value.
func (b bounds) holds(value float64) bool {
	return !slices.ContainsFunc(b, func(b bound) bool { return !b.holds(value) })
}

func (b bound) holds(value float64) bool {
	switch b.operator {
	case "<":
		return value < b.value
	case "<=":
		return value <= b.value
	case ">":
		return value > b.value
	case ">=":
		return value >= b.value
	}
	return value == b.value
}

// parseMemory returns the bytes of a size such as 16Gi.
func parseMemory(text string) (float64, bool) {
	for suffix, unit := range map[string]float64{"Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40} {
		if number, found := strings.CutSuffix(text, suffix); found {
			n, err := strconv.ParseFloat(number, 64)
			isHex := strings.ContainsAny(number, "xX")
			return n * unit, err == nil && !isHex && n >= 0 && !math.IsInf(n, 1) // false for NaN
		}
	}
	return 0, false
}

// parseCapability parses a compute capability such as 8.0 or 8.
func parseCapability(text string) (float64, bool) {
	major, minor, hasMinor := strings.Cut(text, ".")
	var c gpu.ComputeCapability
	var err error
	if c.Major, err = strconv.Atoi(major); err != nil || c.Major < 0 {
		return 0, false
	}
	if hasMinor {
		if c.Minor, err = strconv.Atoi(minor); err != nil || c.Minor < 0 {
			return 0, false
		}
	}
	return capabilityValue(c), true
}

// capabilityValue orders compute capabilities; 12.10 is later than 12.9.
func capabilityValue(c gpu.ComputeCapability) float64 { return float64(c.Major*1000 + c.Minor) }

// problems returns the problems of a selector, each starting with the key.
func (s Selector) problems() (found []string) {
	invalid := func(format string, args ...any) {
		found = append(found, ".select."+fmt.Sprintf(format, args...))
	}
	globs := func(key string, patterns ...string) {
		for _, pattern := range patterns {
			if _, err := path.Match(pattern, ""); err != nil {
				invalid("%s: want a glob, got %q", key, pattern)
			}
		}
	}
	globs("product", s.Product)
	globs("uuid", s.UUID...)
	globs("pci", s.PCI...)
	globs("mig", s.MIG)
	if _, err := s.ComputeCapability.parse(parseCapability); err != nil {
		invalid(`computeCapability: want comparisons such as ">=8.0", got %q: %v`, s.ComputeCapability, err)
	}
	if _, err := s.Memory.parse(parseMemory); err != nil {
		invalid(`memory: want comparisons such as ">=16Gi, <40Gi", got %q: %v`, s.Memory, err)
	}
	for _, index := range s.Index {
		if index < 0 {
			invalid("index: want at least 0, got %d", index)
		}
	}
	if s.Index != nil && len(s.Index) == 0 || s.UUID != nil && len(s.UUID) == 0 || s.PCI != nil && len(s.PCI) == 0 {
		found = append(found, ".select: want at least one value in index, uuid and pci, got an empty list")
	}
	return found
}
