package cluster

import "strconv"

// Device is a device in a ResourceSlice. It has the fields of resource.k8s.io/v1 that gpucdi publishes. Its maps and
// slices must not be modified once it is passed to a Pool.
type Device struct {
	Name       string               `json:"name"` // DNS label, unique in the pool
	Attributes map[string]Attribute `json:"attributes,omitempty"`
	Capacity   map[string]Capacity  `json:"capacity,omitempty"`
	Taints     []Taint              `json:"taints,omitempty"`
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

// Capacity is an amount that a device has.
type Capacity struct {
	Value string `json:"value"` // quantity in canonical form: "80Gi"
}

// Bytes returns a capacity in bytes.
func Bytes(n uint64) Capacity {
	units := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}
	unit := 0
	for n != 0 && n%1024 == 0 && unit < len(units)-1 {
		n /= 1024
		unit++
	}
	return Capacity{strconv.FormatUint(n, 10) + units[unit]}
}

// Count returns a capacity without a unit. The canonical form of thousands has a suffix.
func Count(n uint64) Capacity {
	units := []string{"", "k", "M", "G", "T", "P", "E"}
	unit := 0
	for n != 0 && n%1000 == 0 && unit < len(units)-1 {
		n /= 1000
		unit++
	}
	return Capacity{strconv.FormatUint(n, 10) + units[unit]}
}

// Taint keeps claims that do not tolerate it from a device. A Pool keeps the time at which a taint was added for as
// long as it is wanted.
type Taint struct {
	Key    string      `json:"key"`
	Value  string      `json:"value,omitempty"`
	Effect TaintEffect `json:"effect"`
}

// TaintEffect is the effect of a Taint.
type TaintEffect string

// Values of TaintEffect.
const (
	TaintNone  TaintEffect = "None"       // informational
	NoSchedule TaintEffect = "NoSchedule" // no new allocations
	NoExecute  TaintEffect = "NoExecute"  // evicts pods, too
)
