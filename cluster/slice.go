package cluster

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
)

const slicesPath = "/apis/resource.k8s.io/v1/resourceslices"

const (
	sliceAPIVersion = "resource.k8s.io/v1"
	sliceKind       = "ResourceSlice"
)

// devicesPerSlice is the number of devices in a slice. The API allows 128, but only 64 once a device has a taint. The
// lower limit always holds, so that a fault never moves devices from one slice to another.
const devicesPerSlice = 64

// sliceSuffix is the end of the names of all slices that gpucdi writes. A name cannot be changed, unlike labels and
// annotations, so it identifies the writer. The names of other drivers' slices end in five random
// characters.
const sliceSuffix = "-gpucdi"

// isOwnSlice reports whether gpucdi wrote the slice with that name.
func isOwnSlice(name string) bool { return strings.HasSuffix(name, sliceSuffix) }

// nameLimit is the maximum length of the name of an object, in bytes.
const nameLimit = 253

// sliceName returns the name of a slice of a pool. Since Kubernetes 1.36 the scheduler considers slices in the order of
// their names, so the index comes first. The name is the same each time, so no two slices can have the same index.
func sliceName(driver, node string, index int) string {
	name := fmt.Sprintf("%05d-%s-%s", index, driver, node)
	if limit := nameLimit - len(sliceSuffix); len(name) > limit {
		hash := fmt.Sprintf("-%x", sha256.Sum256([]byte(name)))[:17]
		name = strings.TrimRight(name[:limit-len(hash)], "-.") + hash
	}
	return name + sliceSuffix
}

// sliceObject is a ResourceSlice.
type sliceObject struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"`
	Metadata   sliceMetadata `json:"metadata"`
	Spec       sliceSpec     `json:"spec"`
}

// sliceMetadata has the metadata that an update preserves.
type sliceMetadata struct {
	Name            string            `json:"name"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	Finalizers      []string          `json:"finalizers,omitempty"`
	Owners          []owner           `json:"ownerReferences,omitempty"`
}

// owner is an owner reference. Garbage collection deletes a slice after its owner.
type owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller,omitempty"`
	Block      bool   `json:"blockOwnerDeletion,omitempty"`
}

type sliceSpec struct {
	Driver   string        `json:"driver"`
	Pool     slicePool     `json:"pool"`
	NodeName string        `json:"nodeName"`
	Devices  []sliceDevice `json:"devices,omitempty"`
}

type slicePool struct {
	Name       string `json:"name"`
	Generation int64  `json:"generation"`
	Count      int64  `json:"resourceSliceCount"`
}

type sliceDevice struct {
	Device
	Taints []sliceTaint `json:"taints,omitempty"`
}

type sliceTaint struct {
	Taint
	TimeAdded string `json:"timeAdded,omitempty"`
}

// slice is a ResourceSlice as received from the API server.
type slice struct {
	sliceMetadata
	spec    sliceSpec
	form    string // see specForm
	manager string // field manager that created it
}

// UnmarshalJSON decodes a ResourceSlice.
func (s *slice) UnmarshalJSON(data []byte) error {
	var object struct {
		Metadata struct {
			sliceMetadata
			ManagedFields []struct {
				Manager string `json:"manager"`
			} `json:"managedFields"`
		} `json:"metadata"`
		Spec json.RawMessage `json:"spec"`
	}
	if err := json.Unmarshal(data, &object); err != nil {
		return err
	}
	*s = slice{sliceMetadata: object.Metadata.sliceMetadata}
	if m := object.Metadata.ManagedFields; len(m) > 0 {
		s.manager = m[0].Manager
	}
	if err := json.Unmarshal(object.Spec, &s.spec); err != nil {
		return err
	}
	if !isOwnSlice(s.Name) {
		s.spec.Devices = nil
		return nil
	}
	var err error
	s.form, err = specForm(object.Spec)
	return err
}

// specForm returns a spec as JSON that can be compared: with sorted keys, without the generation of the pool and the
// times of taints, which do not depend on the wanted devices, and with the fields that sliceSpec lacks.
func specForm(spec []byte) (string, error) {
	var fields map[string]any
	decoder := json.NewDecoder(bytes.NewReader(spec))
	decoder.UseNumber()
	if err := decoder.Decode(&fields); err != nil {
		return "", err
	}
	if pool, ok := fields["pool"].(map[string]any); ok {
		delete(pool, "generation")
	}
	for device := range objects(fields["devices"]) {
		for taint := range objects(device["taints"]) {
			delete(taint, "timeAdded")
		}
	}
	form, err := json.Marshal(fields)
	return string(form), err
}

// objects returns the objects of a decoded JSON array.
func objects(array any) func(yield func(map[string]any) bool) {
	return func(yield func(map[string]any) bool) {
		items, _ := array.([]any)
		for _, item := range items {
			if object, ok := item.(map[string]any); ok && !yield(object) {
				return
			}
		}
	}
}
