package vcuda

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"github.com/gpucdi/gpucdi/allocator"
)

const (
	// managedLabel and managedValue mark the templates that the Controller creates.
	managedLabel = "app.kubernetes.io/managed-by"
	managedValue = "gpucdi-vcuda"
	// podLabel marks the pods that an admission policy has changed.
	podLabel = "gpucdi.dev/vcuda"
	// hashLabel has a hash of the template's spec. Specs are immutable, so the Controller replaces templates with another
	// hash, for example after an upgrade of gpucdi or if another DeviceClass is configured.
	hashLabel = "gpucdi.dev/spec-hash"
)

// requestName is the name of the request in each claim.
const requestName = "gpu"

// template is a ResourceClaimTemplate of resource.k8s.io/v1 with the fields that the Controller sets.
type template struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Metadata   templateMetadata `json:"metadata"`
	Spec       struct {
		Spec claimSpec `json:"spec"`
	} `json:"spec"`
}

type templateMetadata struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
}

type claimSpec struct {
	Devices struct {
		Requests []deviceRequest `json:"requests"`
		Config   []deviceConfig  `json:"config,omitempty"`
	} `json:"devices"`
}

type deviceRequest struct {
	Name    string       `json:"name"`
	Exactly exactRequest `json:"exactly"`
}

type exactRequest struct {
	Class     string     `json:"deviceClassName"`
	Count     int        `json:"count,omitempty"`
	Selectors []selector `json:"selectors,omitempty"`
	Capacity  *capacity  `json:"capacity,omitempty"`
}

type selector struct {
	CEL celSelector `json:"cel"`
}

type celSelector struct {
	Expression string `json:"expression"`
}

type capacity struct {
	Requests map[string]string `json:"requests"`
}

type deviceConfig struct {
	Requests []string     `json:"requests"`
	Opaque   opaqueConfig `json:"opaque"`
}

type opaqueConfig struct {
	Driver     string     `json:"driver"`
	Parameters parameters `json:"parameters"`
}

// parameters is a DeviceConfig of the DRA driver; see docs/dra.md.
type parameters struct {
	APIVersion     string `json:"apiVersion"`
	Kind           string `json:"kind"`
	ComputeCeiling int    `json:"computeCeiling"`
}

// template returns the template of a request. driver is the name of the DRA driver, and class that of the DeviceClass.
func (r request) template(namespace, driver, class string) template {
	t := template{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimTemplate", Metadata: templateMetadata{
		Name: r.Name(), Namespace: namespace, Labels: map[string]string{managedLabel: managedValue},
	}}
	exactly := exactRequest{Class: class}
	if r.Cores >= wholeCores {
		exactly.Count, exactly.Selectors = r.Cores/wholeCores, []selector{whole(driver)}
	} else {
		exactly.Selectors = append([]selector{fullGPU(driver)}, r.selectors()...)
		exactly.Capacity = &capacity{map[string]string{"cores": strconv.Itoa(r.Cores), "memory": fmt.Sprintf("%dMi", r.MemoryMiB)}}
	}
	devices := &t.Spec.Spec.Devices
	devices.Requests = []deviceRequest{{Name: requestName, Exactly: exactly}}
	if r.ComputeCeiling > 0 {
		devices.Config = []deviceConfig{{Requests: []string{requestName}, Opaque: opaqueConfig{
			Driver: driver, Parameters: parameters{APIVersion: "gpucdi.dev/v1", Kind: "DeviceConfig", ComputeCeiling: r.ComputeCeiling},
		}}}
	}
	t.Metadata.Labels[hashLabel] = t.Spec.Spec.hash()
	return t
}

func (s claimSpec) hash() string {
	encoded, err := json.Marshal(s)
	if err != nil {
		panic(err) // it has only strings and numbers
	}
	sum := fnv.New64a()
	_, _ = sum.Write(encoded)
	return strconv.FormatUint(sum.Sum64(), 16)
}

// isGPU is a CEL expression with the name of the DRA driver. It excludes MIG devices, which the MIG strategy single
// also offers as nvidia.com/gpu, and claims can share: 30 cores would be 30 % of a MIG device.
const isGPU = `device.attributes[%[1]q].?type.orValue("") == "gpu"`

// fullGPU returns a selector for GPUs.
func fullGPU(driver string) selector {
	return selector{celSelector{fmt.Sprintf(isGPU, driver)}}
}

// whole returns a selector for GPUs of which a claim without capacity requests gets all, which is the strongest
// isolation. Of GPUs that are shared as replicas it would get one replica.
func whole(driver string) selector {
	return selector{celSelector{fmt.Sprintf(isGPU+` && !("shares" in device.capacity[%[1]q])`, driver)}}
}

// selectors returns selectors for the minimum levels of isolation of a part of a GPU.
func (r request) selectors() (all []selector) {
	return slices.Concat(
		atLeast("memoryIsolation", r.Isolation.Memory, allocator.MemoryIsolationLevels),
		atLeast("computeIsolation", r.Isolation.Compute, allocator.ComputeIsolationLevels))
}

// atLeast returns a selector for devices whose attribute has the minimum level or a stronger one. Devices without the
// attribute do not match. If minimum is empty, it returns none.
func atLeast[L ~string](attribute string, minimum L, levels []L) []selector {
	if minimum == "" {
		return nil
	}
	var sufficient []string
	for _, level := range levels[slices.Index(levels, minimum):] {
		sufficient = append(sufficient, strconv.Quote(string(level)))
	}
	return []selector{{celSelector{fmt.Sprintf(`device.attributes["gpucdi.dev"].?%s.orValue("") in [%s]`, attribute, strings.Join(sufficient, ", "))}}}
}
