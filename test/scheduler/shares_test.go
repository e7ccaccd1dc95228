package scheduler

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	internalapi "k8s.io/kubernetes/pkg/apis/resource"
	resourcev1 "k8s.io/kubernetes/pkg/apis/resource/v1"
	"k8s.io/kubernetes/pkg/apis/resource/validation"
)

// sharedNode is a node whose GPUs are shared by claims.
type sharedNode struct {
	*testing.T
	p       *publisher
	inv     inventory
	request map[string]any // see testdata/devices.go
	granted []share
}

// share is an allocated device of a claim.
type share struct {
	uuid, device string
	consumed     map[resourceapi.QualifiedName]resource.Quantity // nil if the device is not shared
}

func (s share) amount(name resourceapi.QualifiedName) int64 {
	q := s.consumed[name]
	return q.Value()
}

func newSharedNode(t *testing.T, gpus int, request map[string]any) *sharedNode {
	return &sharedNode{T: t, p: newPublisher(t), inv: newInventory(gpus, func(int, int) int { return 0 }), request: request}
}

// devices returns the published devices, in the order in which the scheduler should allocate them after the claims so
// far.
func (n *sharedNode) devices() []resourceapi.Device {
	held := map[string]map[string]int64{}
	for _, s := range n.granted {
		if s.consumed == nil {
			held[s.uuid] = nil
			continue
		}
		if held[s.uuid] == nil {
			held[s.uuid] = map[string]int64{}
		}
		held[s.uuid]["cores"] += s.amount("cores")
		held[s.uuid]["memory"] += s.amount("memory")
		held[s.uuid]["replicas"] += s.amount("shares")
	}
	n.request["held"] = held
	return n.p.publishWith(n.T, n.inv, n.request).Devices
}

// allocate allocates a device to a claim with capacity requests, such as cores=25 and memory=20Gi; nil: no requests. It
// reports whether the scheduler found a device.
func (n *sharedNode) allocate(requests map[resourceapi.QualifiedName]string) (share, bool) {
	n.Helper()
	devices := n.devices()
	state := noneAllocated()
	for _, s := range n.granted {
		id := structured.MakeDeviceID(driver, nodeName, s.device)
		if s.consumed == nil {
			state.AllocatedDevices.Insert(id)
			continue
		}
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, s.consumed))
	}
	claim := newClaim("gpu", 1, "")
	if requests != nil {
		capacity := &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
		for name, text := range requests {
			capacity.Requests[name] = resource.MustParse(text)
		}
		claim.Spec.Devices.Requests[0].Exactly.Capacity = capacity
	}
	results := allocateFrom(n.T, devices, state, claim)
	if results == nil {
		return share{}, false
	}
	result := results[0]
	i := slices.IndexFunc(devices, func(d resourceapi.Device) bool { return d.Name == result.Device })
	got := share{*devices[i].Attributes["uuid"].StringValue, result.Device, result.ConsumedCapacity}
	n.granted = append(n.granted, got)
	return got, true
}

// gets allocates a claim, and fails unless it gets the GPU at the index, or no GPU if the index is negative.
func (n *sharedNode) gets(index int, requests map[resourceapi.QualifiedName]string) share {
	n.Helper()
	got, ok := n.allocate(requests)
	want := ""
	if index >= 0 {
		want = n.inv.GPUs[index].UUID
	}
	if ok != (index >= 0) || got.uuid != want {
		n.Fatalf("a claim for %v got %q, want %q", requests, got.uuid, want)
	}
	return got
}

// A pod that requests whole GPUs as with gpu-manager does not get a replica.
func TestWholeGPUsAreNotReplicas(t *testing.T) {
	data, err := os.ReadFile("../../vcuda/testdata/vcuda-c200.json")
	if err != nil {
		t.Fatal(err)
	}
	var template resourceapi.ResourceClaimTemplate
	if err := json.Unmarshal(data, &template); err != nil {
		t.Fatal(err)
	}
	template.Spec.Spec.Devices.Requests[0].Exactly.AllocationMode = resourceapi.DeviceAllocationModeExactCount // the default
	template.Spec.Spec.Devices.Requests[0].Exactly.DeviceClassName = "gpu"
	claim := newClaim("gpu", 2, "")
	claim.Spec = template.Spec.Spec
	for _, tc := range []struct {
		request map[string]any
		want    int
	}{
		{map[string]any{}, 2}, {map[string]any{"share": "memory"}, 2}, {map[string]any{"share": "replicas", "replicas": 4}, 0},
	} {
		n := newSharedNode(t, 4, tc.request)
		if got := allocate(t, n.devices(), nil, claim); len(got) != tc.want {
			t.Errorf("with %v, the claim gets %v, want %d GPUs", tc.request, got, tc.want)
		}
	}
}

func memoryShare(cores int, memory string) map[resourceapi.QualifiedName]string {
	return map[resourceapi.QualifiedName]string{"cores": fmt.Sprint(cores), "memory": memory}
}

// Claims share a GPU by memory and cores. A claim without capacity requests, such as one for nvidia.com/gpu, gets a
// GPU to itself. Among free GPUs, those of pairs with the most free members come first.
func TestSharesByMemory(t *testing.T) {
	n := newSharedNode(t, 4, map[string]any{"share": "memory", "placement": "pack"})
	n.gets(0, memoryShare(25, "20Gi"))
	small := n.gets(0, memoryShare(25, "20Gi"))
	if small.amount("cores") != 25 || small.amount("memory") != 20<<30 {
		t.Errorf("consumed %v", small.consumed)
	}
	n.gets(2, memoryShare(25, "47Gi"))
	whole := n.gets(1, nil)
	if whole.amount("cores") != 100 || whole.amount("memory") != 48<<30 {
		t.Errorf("a claim without requests consumed %v", whole.consumed)
	}
	n.gets(3, nil)
	n.gets(-1, nil)
	n.gets(-1, memoryShare(76, "1Gi"))
	n.gets(-1, memoryShare(10, "9Gi"))
	n.gets(-1, map[resourceapi.QualifiedName]string{"memory": "1Gi"}) // requests all cores, the default
	tiny := n.gets(0, memoryShare(10, "1Mi"))
	if tiny.amount("memory") != 256<<20 {
		t.Errorf("1Mi consumed %v, want at least 256Mi", tiny.consumed)
	}
	n.gets(0, memoryShare(40, "7935.5Mi"))
	n.gets(-1, memoryShare(1, "1.5Gi"))
}

// With placement spread, the next claim gets the GPU with the most free capacity.
func TestSharesSpread(t *testing.T) {
	n := newSharedNode(t, 4, map[string]any{"share": "memory", "placement": "spread"})
	for _, i := range []int{0, 2, 1, 3} { // of pairs 0, 1 and 2, 3, the one with more free members first
		n.gets(i, memoryShare(50, "10Gi"))
	}
	n.gets(-1, memoryShare(60, "1Gi"))
	n.gets(-1, nil)
	n.gets(0, memoryShare(20, "10Gi"))
	n.gets(1, memoryShare(50, "10Gi"))
}

// Replicas are published as the capacity named shares, as in NVIDIA's DRA driver. A claim without requests gets one.
func TestSharesByReplicas(t *testing.T) {
	n := newSharedNode(t, 2, map[string]any{"share": "replicas", "replicas": 3, "placement": "pack"})
	n.gets(0, nil)
	n.gets(0, map[resourceapi.QualifiedName]string{"shares": "2"})
	n.gets(1, map[resourceapi.QualifiedName]string{"memory": "40Gi"})
	n.gets(1, nil)
	n.gets(-1, map[resourceapi.QualifiedName]string{"shares": "2"})
	n.gets(1, nil)
	n.gets(-1, nil)
}

// On a node with shared and other GPUs, claims for a GPU get the others first, and claims for a share the shared ones.
func TestSharedAndWholeGPUs(t *testing.T) {
	n := newSharedNode(t, 2, map[string]any{"share": "memory", "placement": "pack", "shared": []int{0}})
	n.gets(0, memoryShare(10, "1Gi"))
	n.gets(1, nil)
	n.gets(-1, nil)
	n.gets(0, memoryShare(90, "47Gi"))
}

// With random claims, the cores and the memory of a GPU suffice for all its claims, and no claim is refused while a GPU
// has enough left.
func TestSharesNeverExceedGPU(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, placement := range []string{"pack", "spread"} {
		n := newSharedNode(t, 4, map[string]any{"share": "memory", "placement": placement})
		granted := 0
		for range 200 {
			if len(n.granted) > 0 && random.IntN(3) == 0 {
				i := random.IntN(len(n.granted))
				n.granted = slices.Delete(n.granted, i, i+1)
			}
			cores, memory := int64(1+random.IntN(100)), int64(256+random.IntN(48<<10-256))
			fits := false
			for _, g := range n.inv.GPUs {
				usedCores, usedMemory := n.used(g.UUID)
				fits = fits || usedCores+cores <= 100 && usedMemory+memory<<20 <= 48<<30
			}
			_, ok := n.allocate(memoryShare(int(cores), fmt.Sprintf("%dMi", memory)))
			if ok != fits {
				t.Fatalf("%s: %d cores and %d MiB allocated: %v, want %v", placement, cores, memory, ok, fits)
			}
			if ok {
				granted++
			}
			for _, g := range n.inv.GPUs {
				if cores, memory := n.used(g.UUID); cores > 100 || memory > 48<<30 {
					t.Fatalf("%s: %d cores and %d bytes of %s are used", placement, cores, memory, g.UUID)
				}
			}
		}
		if granted < 50 {
			t.Errorf("%s: only %d claims got a share", placement, granted)
		}
	}
}

// A claim for several shares gets them on different GPUs.
func TestSharesOfOneClaim(t *testing.T) {
	claim := newClaim("gpu", 2, "")
	claim.Spec.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{
		Requests: map[resourceapi.QualifiedName]resource.Quantity{"cores": resource.MustParse("25"), "memory": resource.MustParse("20Gi")},
	}
	for gpus, want := range map[int]int{1: 0, 2: 2} {
		n := newSharedNode(t, gpus, map[string]any{"share": "memory", "placement": "pack"})
		names := sets.New[string]()
		for _, result := range allocateFrom(t, n.devices(), noneAllocated(), claim) {
			names.Insert(result.Device)
		}
		if names.Len() != want {
			t.Errorf("2 shares are on %d of %d GPUs, want %d", names.Len(), gpus, want)
		}
	}
}

func noneAllocated() structured.AllocatedState {
	return structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
}

func (n *sharedNode) used(uuid string) (cores, memory int64) {
	for _, s := range n.granted {
		if s.uuid == uuid {
			cores, memory = cores+s.amount("cores"), memory+s.amount("memory")
		}
	}
	return cores, memory
}

// The validation of the API server accepts shared devices, including faulty ones and MIG devices.
func TestSharedDevicesAreValid(t *testing.T) {
	p := newPublisher(t)
	small := mixed()
	small.GPUs[4].MemoryBytes, small.GPUs[5].MemoryBytes, small.GPUs[6].MemoryBytes = 0, 256<<20, 257<<20
	for _, request := range []map[string]any{
		{"share": "memory"}, {"share": "replicas", "replicas": 2}, {"share": "replicas", "replicas": 20000}, {"share": "memory", "placement": "spread"},
	} {
		shared := 0
		for _, slice := range slicesOf(p.publishWith(t, small, request).Devices) {
			for _, d := range slice.Spec.Devices {
				if d.AllowMultipleAllocations != nil {
					shared++
				}
			}
			var internal internalapi.ResourceSlice
			if err := resourcev1.Convert_v1_ResourceSlice_To_resource_ResourceSlice(slice, &internal, nil); err != nil {
				t.Fatal(err)
			}
			if errs := validation.ValidateResourceSlice(&internal); len(errs) > 0 {
				t.Errorf("%v: invalid ResourceSlice: %v", request, errs.ToAggregate())
			}
		}
		if shared < 6 {
			t.Errorf("%v: %d devices are shared", request, shared)
		}
	}
}
