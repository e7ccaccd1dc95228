package scheduler

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/gpucdi/gpucdi/test/node/tools"
)

const (
	driver   = "gpu.nvidia.com"
	nodeName = "node-1"
)

// inventory is the output of gpucdi list -o json.
type inventory struct {
	Driver map[string]any `json:"driver"`
	GPUs   []device       `json:"gpus"`
}

type device struct {
	UUID              string      `json:"uuid"`
	Index             int         `json:"index"`
	PCIBusID          string      `json:"pciBusID"`
	NUMANode          int         `json:"numaNode"`
	PCIeRoot          string      `json:"pcieRoot"`
	PCIeSwitches      []string    `json:"pcieSwitches"`
	Product           string      `json:"product"`
	Architecture      string      `json:"architecture"`
	ComputeCapability string      `json:"computeCapability"`
	MemoryBytes       uint64      `json:"memoryBytes"`
	MIG               string      `json:"mig"`
	MIGDevices        []migDevice `json:"migDevices,omitempty"`
	Links             []link      `json:"links"`
	Fault             *fault      `json:"fault,omitempty"`
}

type fault struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type migDevice struct {
	UUID        string         `json:"uuid"`
	Index       int            `json:"index"`
	Profile     string         `json:"profile"`
	MemoryBytes uint64         `json:"memoryBytes"`
	Placement   map[string]int `json:"placement"`
}

type link struct {
	Peer    string `json:"peer"`
	NVLinks int    `json:"nvlinks"`
	PCIe    string `json:"pcie"`
}

// newInventory returns n GPUs. GPUs 2i and 2i+1 share a PCIe switch, and each half of the GPUs shares a NUMA node.
// nvlinks returns the number of NVLinks between two GPUs.
func newInventory(n int, nvlinks func(i, j int) int) inventory {
	inv := inventory{Driver: map[string]any{"version": "580.95.05", "cuda": "13.0"}}
	uuid := func(i int) string { return fmt.Sprintf("GPU-4fbdcb86-5b5c-4b5f-8c3a-0123456789%02x", i) }
	for i := range n {
		g := device{
			UUID: uuid(i), Index: i, PCIBusID: fmt.Sprintf("0000:%02x:00.0", 0x10*i+8), NUMANode: 2 * i / n,
			PCIeRoot: fmt.Sprintf("pci0000:%02x", i/2), PCIeSwitches: []string{fmt.Sprintf("0000:%02x:00.0", i/2)},
			Product: "NVIDIA L40S", Architecture: "Ada", ComputeCapability: "8.9", MemoryBytes: 48 << 30, MIG: "disabled",
		}
		for j := range n {
			l := link{Peer: uuid(j), NVLinks: nvlinks(min(i, j), max(i, j)), PCIe: "SYS"}
			if 2*i/n == 2*j/n {
				l.PCIe = "NODE"
			}
			if i/2 == j/2 {
				l.PCIe = "PIX"
			}
			if i != j {
				g.Links = append(g.Links, l)
			}
		}
		inv.GPUs = append(inv.GPUs, g)
	}
	return inv
}

// topologies are nodes with different links between their GPUs.
var topologies = map[string]inventory{
	"4 on PCIe": newInventory(4, func(int, int) int { return 0 }),
	"8 on PCIe": newInventory(8, func(int, int) int { return 0 }),
	"8 in NVLink pairs": newInventory(8, func(i, j int) int { // bridges need not follow the PCIe tree
		if j == i+4 {
			return 4
		}
		return 0
	}),
	"8 on an NVSwitch": newInventory(8, func(int, int) int { return 18 }),
}

// score returns the sum of the link scores of all pairs of the GPUs.
func (inv inventory) score(uuids []string) (total int) {
	paths := []string{"SYS", "NODE", "PHB", "PXB", "PIX"}
	for _, g := range inv.GPUs {
		for _, l := range g.Links {
			if g.UUID < l.Peer && slices.Contains(uuids, g.UUID) && slices.Contains(uuids, l.Peer) {
				total += 100*l.NVLinks + slices.Index(paths, l.PCIe)
			}
		}
	}
	return total
}

// best returns the highest score of any n GPUs of the node.
func (inv inventory) best(n int) (best int) {
	for set := range 1 << len(inv.GPUs) {
		var uuids []string
		for i, g := range inv.GPUs {
			if set>>i&1 == 1 {
				uuids = append(uuids, g.UUID)
			}
		}
		if len(uuids) == n {
			best = max(best, inv.score(uuids))
		}
	}
	return best
}

// timeout limits how long a test waits for a response of the publisher.
const timeout = 60 * time.Second

// publisher is a process of testdata/devices.go.
type publisher struct {
	in   *json.Encoder
	out  *json.Decoder
	kill func() error
}

// response has the published devices, and the UUIDs of the device plugin's preferred allocation.
type response struct {
	Devices   []resourceapi.Device
	Preferred []string
}

// newPublisher builds and starts a publisher, which ends with the test. It is built in the product's module, whose
// dependencies conflict with those of Kubernetes.
func newPublisher(t *testing.T) *publisher {
	t.Helper()
	module, err := tools.ModuleDir(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "devices")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, filepath.Join(module, "scheduler/testdata/devices.go"))
	build.Dir = filepath.Dir(module)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the publisher: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return &publisher{in: json.NewEncoder(in), out: json.NewDecoder(bufio.NewReader(out)), kill: cmd.Process.Kill}
}

// publish returns the devices while some of the GPUs are allocated, and the preferred allocation of size GPUs; no
// preferred allocation if size is 0.
func (p *publisher) publish(t *testing.T, inv inventory, allocated []string, size int) response {
	t.Helper()
	return p.publishWith(t, inv, map[string]any{"allocated": allocated, "size": size})
}

// publishWith sends a request, with the keys of testdata/devices.go, and returns the response.
func (p *publisher) publishWith(t *testing.T, inv inventory, request map[string]any) response {
	t.Helper()
	request["inventory"] = inv
	stuck := time.AfterFunc(timeout, func() { _ = p.kill() })
	defer stuck.Stop()
	if err := p.in.Encode(request); err != nil {
		t.Fatalf("writing to the publisher: %v", err)
	}
	var r response
	if err := p.out.Decode(&r); err != nil {
		t.Fatalf("reading from the publisher: %v", err)
	}
	return r
}

// classes are the DeviceClasses that select GPUs and MIG devices.
type classes struct{}

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	kind, _, _ := strings.Cut(name, ".") // "gpu", or "gpu.nvidia.com" as in the chart
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
	class.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: fmt.Sprintf("device.driver == %q && device.attributes[%q].type == %q", driver, driver, kind),
	}}}
	return class, nil
}

// features are the allocator's default features in Kubernetes 1.36.
var features = structured.Features{
	AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true, DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true,
}

var celCache = cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})

// slicesOf returns the ResourceSlice with devices.
func slicesOf(devices []resourceapi.Device) []*resourceapi.ResourceSlice {
	name := nodeName
	return []*resourceapi.ResourceSlice{{
		ObjectMeta: metav1.ObjectMeta{Name: "00000-" + driver + "-" + nodeName},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &name, Devices: devices,
			Pool: resourceapi.ResourcePool{Name: nodeName, Generation: 1, ResourceSliceCount: 1},
		},
	}}
}

// newClaim returns a claim for devices of a class that match the selectors and have the same value of an attribute. An
// empty attribute is no constraint.
func newClaim(class string, count int64, attribute string, selectors ...string) *resourceapi.ResourceClaim {
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	for _, s := range selectors {
		exactly.Selectors = append(exactly.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: s}})
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", Namespace: "default", UID: "uid"}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpus", Exactly: exactly}}
	if attribute != "" {
		name := resourceapi.FullyQualifiedName(attribute)
		claim.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: &name}}
	}
	return claim
}

// allocate returns the UUIDs of the devices that the scheduler allocates to a claim, nil if there are none.
func allocate(t *testing.T, devices []resourceapi.Device, allocated []string, claim *resourceapi.ResourceClaim) (uuids []string) {
	t.Helper()
	byName, state := map[string]string{}, noneAllocated()
	for _, d := range devices {
		uuid := *d.Attributes["uuid"].StringValue
		byName[d.Name] = uuid
		if slices.Contains(allocated, uuid) {
			state.AllocatedDevices.Insert(structured.MakeDeviceID(driver, nodeName, d.Name))
		}
	}
	for _, d := range allocateFrom(t, devices, state, claim) {
		uuids = append(uuids, byName[d.Device])
	}
	return uuids
}

// allocateFrom returns the devices that the scheduler allocates to a claim, given the devices allocated to other
// claims.
func allocateFrom(t *testing.T, devices []resourceapi.Device, allocated structured.AllocatedState, claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	t.Helper()
	a, err := structured.NewAllocator(t.Context(), features, allocated, classes{}, slicesOf(devices), celCache)
	if err != nil {
		t.Fatal(err)
	}
	results, err := a.Allocate(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		t.Fatal(err)
	}
	if results == nil {
		return nil
	}
	return results[0].Devices.Results
}
