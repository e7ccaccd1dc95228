package main

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"sigs.k8s.io/yaml"
)

// The DeviceClass of nvidia.com/gpu selects the devices that gpucdi publishes as this resource, and the GPUs of other
// drivers of the same name.
func TestGPUClass(t *testing.T) {
	out, err := helm(t.Context(), "template", "gpucdi", "--show-only", "templates/dra.yaml", "--set", "dra.enabled=true")
	if err != nil {
		t.Fatal(err)
	}
	var class resourceapi.DeviceClass
	for _, object := range objects(out) {
		var c resourceapi.DeviceClass
		if err := yaml.Unmarshal([]byte(object), &c); err == nil && c.Kind == "DeviceClass" && c.Name == "gpu.nvidia.com" {
			class = c
		}
	}
	if len(class.Spec.Selectors) != 1 {
		t.Fatalf("got class %+v", class)
	}
	selector := cel.GetCompiler(cel.Features{}).CompileCELExpression(class.Spec.Selectors[0].CEL.Expression, cel.Options{})
	if selector.Error != nil {
		t.Fatal(selector.Error)
	}
	for name, tc := range map[string]struct {
		driver, kind, resource string // resource: empty if the driver does not set the attribute
		want                   bool
	}{
		"GPU":                             {"gpu.nvidia.com", "gpu", "nvidia.com/gpu", true},
		"renamed GPU":                     {"gpu.nvidia.com", "gpu", "nvidia.com/a100", false},
		"MIG device with strategy single": {"gpu.nvidia.com", "mig", "nvidia.com/gpu", true},
		"MIG device with strategy mixed":  {"gpu.nvidia.com", "mig", "nvidia.com/mig-1g.10gb", false},
		"GPU of NVIDIA's DRA driver":      {"gpu.nvidia.com", "gpu", "", true},
		"MIG device of NVIDIA's driver":   {"gpu.nvidia.com", "mig", "", false},
		"device without attributes":       {"gpu.example.com", "", "", false},
		"GPU of a driver of another name": {"gpu.example.com", "gpu", "nvidia.com/gpu", false},
	} {
		attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}
		for name, value := range map[resourceapi.QualifiedName]string{"type": tc.kind, "gpucdi.dev/resource": tc.resource} {
			if value != "" {
				attributes[name] = resourceapi.DeviceAttribute{StringValue: &value}
			}
		}
		got, _, err := selector.DeviceMatches(t.Context(), cel.Device{Driver: tc.driver, Attributes: attributes})
		if err != nil || got != tc.want {
			t.Errorf("%s: matches %t, error %v", name, got, err)
		}
	}
}
