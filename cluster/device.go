package cluster

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Device is a device in a ResourceSlice. It has the fields of resource.k8s.io/v1 that gpucdi publishes. Its maps and
// slices must not be modified once it is passed to a Pool.
type Device struct {
	Name       string               `json:"name"` // DNS label, unique in the pool
	Attributes map[string]Attribute `json:"attributes,omitempty"`
	Capacity   map[string]Capacity  `json:"capacity,omitempty"`
	Taints     []Taint              `json:"taints,omitempty"`

	// AllowMultipleAllocations allows allocating the device to several claims. Each consumes an amount of its capacities.
	AllowMultipleAllocations bool `json:"allowMultipleAllocations,omitempty"`
}

// Attribute is the value of an attribute, in exactly one field.
type Attribute struct {
	String  *string `json:"string,omitempty"`
	Int     *int64  `json:"int,omitempty"`
	Bool    *bool   `json:"bool,omitempty"`
	Version *string `json:"version,omitempty"` // semver 2.0.0
}

// StringAttribute returns an attribute of type string.
func StringAttribute(value string) Attribute { return Attribute{String: &value} }

// IntAttribute returns an attribute of type int.
func IntAttribute(value int64) Attribute { return Attribute{Int: &value} }

// BoolAttribute returns an attribute of type bool.
func BoolAttribute(value bool) Attribute { return Attribute{Bool: &value} }

// VersionAttribute returns an attribute of type version.
func VersionAttribute(value string) Attribute { return Attribute{Version: &value} }

// Capacity is the amount of a resource, such as memory, that a device has.
type Capacity struct {
	Value  string         `json:"value"` // quantity in canonical form: "80Gi"
	Policy *RequestPolicy `json:"requestPolicy,omitempty"`
}

// RequestPolicy determines the amount of a capacity that a claim consumes. The scheduler rounds a request up to a valid
// amount. Without a policy, a claim consumes the requested amount, or all if it requests none.
type RequestPolicy struct {
	Default string      `json:"default"` // amount for a claim without a request; quantity
	Range   *ValidRange `json:"validRange,omitempty"`
}

// ValidRange defines the valid amounts: Min, and Min plus multiples of Step. Both are quantities.
type ValidRange struct {
	Min  string `json:"min"`
	Step string `json:"step"`
}

// Bytes returns a capacity in bytes.
func Bytes(n uint64) Capacity {
	units := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}
	unit := 0
	for n != 0 && n%1024 == 0 && unit < len(units)-1 {
		n /= 1024
		unit++
	}
	return Capacity{Value: strconv.FormatUint(n, 10) + units[unit]}
}

// Count returns a capacity without a unit. The canonical form of thousands has a suffix.
func Count(n uint64) Capacity {
	units := []string{"", "k", "M", "G", "T", "P", "E"}
	unit := 0
	for n != 0 && n%1000 == 0 && unit < len(units)-1 {
		n /= 1000
		unit++
	}
	return Capacity{Value: strconv.FormatUint(n, 10) + units[unit]}
}

// Consumable returns a capacity of which each claim consumes a part. byDefault, least and step define its policy.
func Consumable(all, byDefault, least, step Capacity) Capacity {
	all.Policy = &RequestPolicy{Default: byDefault.Value, Range: &ValidRange{Min: least.Value, Step: step.Value}}
	return all
}

// ParseQuantity parses a whole quantity such as 20Gi, 100 or 2k.
func ParseQuantity(text string) (uint64, error) {
	digits := strings.TrimRight(text, "KMGTPEki")
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("quantity %q is not a whole number", text)
	}
	unit, known := map[string]uint64{
		"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
		"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
	}[text[len(digits):]]
	if high, product := bits.Mul64(n, unit); known && high == 0 {
		return product, nil
	}
	return 0, fmt.Errorf("quantity %q is invalid or too large", text)
}

// Taint prevents the allocation of a device to claims that do not tolerate it. As long as a taint is wanted, a
// Pool keeps the time at which it was added.
type Taint struct {
	Key    string      `json:"key"`
	Value  string      `json:"value,omitempty"`
	Effect TaintEffect `json:"effect"`
}

// TaintEffect is the effect of a Taint.
type TaintEffect string

// Values of TaintEffect.
const (
	NoSchedule TaintEffect = "NoSchedule" // no new allocations
	NoExecute  TaintEffect = "NoExecute"  // no new allocations, and evicts pods
)
