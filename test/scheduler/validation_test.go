package scheduler

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/kubernetes/pkg/apis/resource"
	resourcev1 "k8s.io/kubernetes/pkg/apis/resource/v1"
	"k8s.io/kubernetes/pkg/apis/resource/validation"
	"sigs.k8s.io/yaml"
)

// mixed returns a node with healthy, faulty and partitioned GPUs.
func mixed() inventory {
	inv := newInventory(8, func(int, int) int { return 18 })
	inv.GPUs[1].Fault = &fault{"xid_79", "GPU has fallen off the bus"}
	inv.GPUs[2].Fault = &fault{"device_node", "no device node"}
	inv.GPUs[3].MIG = "enabled"
	for i, profile := range []string{"7g.80gb", "1g.10gb+me"} {
		inv.GPUs[3].MIGDevices = append(inv.GPUs[3].MIGDevices, migDevice{
			UUID: fmt.Sprintf("MIG-4fbdcb86-5b5c-5b5f-8c3a-01234567890%d", i), Index: i, Profile: profile, MemoryBytes: 9984 << 20,
			Placement: map[string]int{"start": 0, "size": 8 - 7*i},
		})
	}
	return inv
}

// The validation of the API server accepts the devices.
func TestDevicesAreValid(t *testing.T) {
	p := newPublisher(t)
	for _, inv := range []inventory{mixed(), topologies["8 on PCIe"], {Driver: map[string]any{"version": "", "cuda": "0.0"}, GPUs: []device{{UUID: "GPU-0", ComputeCapability: "0.0", NUMANode: -1}}}} {
		for _, slice := range slicesOf(p.publish(t, inv, nil, 0).Devices) {
			var internal resource.ResourceSlice
			if err := resourcev1.Convert_v1_ResourceSlice_To_resource_ResourceSlice(slice, &internal, nil); err != nil {
				t.Fatal(err)
			}
			if len(internal.Spec.Devices) < len(inv.GPUs) {
				t.Errorf("%d devices of %d GPUs", len(internal.Spec.Devices), len(inv.GPUs))
			}
			if errs := validation.ValidateResourceSlice(&internal); len(errs) > 0 {
				t.Errorf("invalid ResourceSlice: %v", errs.ToAggregate())
			}
		}
	}
}

// The scheduler evaluates each selector on all devices of the slice. No evaluation fails, and faulty devices are not
// allocated.
func TestSelectors(t *testing.T) {
	p := newPublisher(t)
	inv := mixed()
	devices := p.publish(t, inv, nil, 0).Devices
	const attribute, capacity = `device.attributes["gpu.nvidia.com"].`, `device.capacity["gpu.nvidia.com"].`
	for _, tc := range []struct {
		class, selector string
		want            int
	}{
		{"gpu", attribute + `productName.lowerAscii().contains("l40s")`, 5},
		{"gpu", attribute + `cudaComputeCapability.compareTo(semver("8.9.0")) >= 0`, 5},
		{"gpu", attribute + `driverVersion.isGreaterThan(semver("580.95.4")) && ` + attribute + `cudaDriverVersion.isLessThan(semver("13.0.1"))`, 5},
		{"gpu", attribute + `brand == "Nvidia" && ` + attribute + `addressingMode == "HMM"`, 0},
		{"gpu", capacity + `memory.compareTo(quantity("48Gi")) == 0`, 5},
		{"gpu", `device.attributes["gpucdi.dev"].resource == "nvidia.com/gpu"`, 5},
		{"gpu", `device.attributes["gpucdi.dev"].set2 != device.attributes["gpucdi.dev"].nvlinkDomain && device.attributes["gpucdi.dev"].pcieSwitch != ""`, 4},
		{"gpu", `device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:02"`, 2},
		{"gpu", `device.attributes["resource.kubernetes.io"].?numaNode.orValue(-1) == 1`, 4},
		{"gpu", `device.attributes["resource.kubernetes.io"].pciBusID == "0000:08:00.0"`, 1},
		{"mig", attribute + `profile == "1g.10gb+me" && ` + attribute + fmt.Sprintf(`parentUUID == %q`, inv.GPUs[3].UUID), 1},
		{"mig", capacity + `multiprocessors.compareTo(quantity("0")) >= 0 && ` + attribute + `uuid.startsWith("MIG-")`, 2},
		{"mig", `device.attributes["gpucdi.dev"].resource == "nvidia.com/mig-7g.80gb" && !("memorySlice7" in device.capacity["gpu.nvidia.com"])`, 1},
		{"mig", `device.attributes["gpucdi.dev"].?memoryIsolation.orValue("none") in ["driver", "hardware"] && device.attributes["gpucdi.dev"].computeIsolation == "hardware"`, 2},
	} {
		if got := matching(t, devices, tc.class, tc.selector); got != tc.want {
			t.Errorf("%s: %d devices match, want %d", tc.selector, got, tc.want)
		}
	}
	for _, d := range devices { // as those of another driver
		maps.DeleteFunc(d.Attributes, func(name resourceapi.QualifiedName, _ resourceapi.DeviceAttribute) bool {
			return strings.HasPrefix(string(name), "gpucdi.dev/")
		})
	}
	if got := matching(t, devices, "gpu", `device.attributes["gpucdi.dev"].?memoryIsolation.orValue("none") in ["driver", "hardware"]`); got != 0 {
		t.Errorf("%d devices without the attributes of gpucdi.dev have an isolation level", got)
	}
}

// matching returns the number of devices of a class that match a selector and can be allocated.
func matching(t *testing.T, devices []resourceapi.Device, class, selector string) (most int) {
	t.Helper()
	for count := range len(devices) {
		if got := allocate(t, devices, nil, newClaim(class, int64(count+1), "", selector)); got != nil {
			most = len(got)
		}
	}
	return most
}

// The selectors in docs/dra-attributes.md match the devices that the text describes.
func TestDocumentedSelectors(t *testing.T) {
	text, err := os.ReadFile("../../docs/dra-attributes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Select devices\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var block strings.Builder // the indented lines
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "    ") {
			block.WriteString(line)
		}
	}
	var example struct{ Selectors []resourceapi.DeviceSelector }
	if err := yaml.UnmarshalStrict([]byte(block.String()), &example); err != nil {
		t.Fatalf("%v\n%s", err, block.String())
	}
	inline := regexp.MustCompile("`(device\\.[^`]+)`").FindAllStringSubmatch(section, -1)
	if len(example.Selectors) != 1 || example.Selectors[0].CEL == nil || len(inline) != 1 {
		t.Fatalf("the section has %d selectors in a block and %d in the text, want 1 each; update the test", len(example.Selectors), len(inline))
	}

	inv := mixed() // of which 1 and 2 are faulty, and 3 is partitioned
	for _, i := range []int{1, 4, 5, 6} {
		inv.GPUs[i].Architecture = "Hopper"
	}
	inv.GPUs[6].MemoryBytes = 32 << 30
	inv.GPUs[7].NUMANode = -1 // unknown, so the attribute is missing
	devices := newPublisher(t).publish(t, inv, nil, 0).Devices
	for selector, want := range map[string]int{
		example.Selectors[0].CEL.Expression: 2, // 4 and 5 are Hopper GPUs with at least 40 GiB
		inline[0][1]:                        1, // 0; 4 to 6 are on another NUMA node
	} {
		if got := matching(t, devices, "gpu", selector); got != want {
			t.Errorf("%s: %d devices match, want %d", selector, got, want)
		}
	}
}

// All devices of a type have the same attributes, except pcieRoot and numaNode, which some nodes lack. All GPUs of
// mixed() have both.
func TestAttributesAreComplete(t *testing.T) {
	p := newPublisher(t)
	byType := map[string][]resourceapi.QualifiedName{}
	for _, d := range p.publish(t, mixed(), nil, 0).Devices {
		kind, names := *d.Attributes["type"].StringValue, slices.Sorted(maps.Keys(d.Attributes))
		if others, found := byType[kind]; found && !slices.Equal(others, names) {
			t.Errorf("%s has %v, others of its type %v", d.Name, names, others)
		}
		byType[kind] = names
	}
	if len(byType) != 2 {
		t.Errorf("types %v", slices.Collect(maps.Keys(byType)))
	}
}
