package agent

import (
	"reflect"
	"slices"
	"testing"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/runtime"
	"github.com/gpucdi/gpucdi/status"
)

// The amount of a share is the sum of the claim's requests for the GPU. A claim for all cores gets the whole GPU.
func TestShareStatus(t *testing.T) {
	of := func(amounts ...allocator.Amount) dra.Record {
		r := dra.Record{Namespace: "default", Name: "a", Pods: []dra.Pod{{Name: "p"}}}
		for _, a := range amounts {
			r.Devices = append(r.Devices, dra.Device{ID: "GPU-a", Amount: a, ComputeCeiling: 60, MPSPercentage: 50})
		}
		return r
	}
	const gib = 1 << 30
	device := allocator.Device{ID: "GPU-a", Sharing: allocator.ShareMemory, Class: allocator.MemoryLimited, Capacity: allocator.Amount{Cores: 100, Memory: 80 * gib}}
	replicas := allocator.Device{ID: "GPU-a", Sharing: allocator.ShareReplicas, Class: allocator.TimeSliced, Capacity: allocator.Amount{Replicas: 4}}
	unlimited := device
	unlimited.Class = allocator.TimeSliced
	for name, tc := range map[string]struct {
		device allocator.Device
		record dra.Record
		want   status.Amount
		limit  bool
	}{
		"part":         {device, of(allocator.Amount{Cores: 25, Memory: gib}), status.Amount{Cores: 25, MemoryBytes: gib}, true},
		"two parts":    {device, of(allocator.Amount{Cores: 25, Memory: gib}, allocator.Amount{Cores: 5, Memory: gib}), status.Amount{Cores: 30, MemoryBytes: 2 * gib}, true},
		"no limit":     {unlimited, of(allocator.Amount{Cores: 25, Memory: gib}), status.Amount{Cores: 25, MemoryBytes: gib}, false},
		"all cores":    {device, of(allocator.Amount{Cores: 100, Memory: gib}), status.Amount{Cores: 100, MemoryBytes: 80 * gib}, false},
		"no amount":    {device, of(allocator.Amount{}), status.Amount{Cores: 100, MemoryBytes: 80 * gib}, false},
		"replicas":     {replicas, of(allocator.Amount{Replicas: 2}), status.Amount{Replicas: 2}, false},
		"all replicas": {replicas, of(allocator.Amount{}), status.Amount{Replicas: 4}, false},
	} {
		got, amount := shareStatus(tc.record, tc.device)
		want := &status.Share{Namespace: "default", Claim: "a", Pods: []string{"p"}, Amount: tc.want, MemoryLimited: tc.limit, ComputeCeiling: 50}
		if !reflect.DeepEqual(got, want) || amountStatus(amount) != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	other := of(allocator.Amount{Cores: 25, Memory: gib})
	other.Devices[0].Admin = true
	if got, _ := shareStatus(other, device); got != nil {
		t.Errorf("a claim with adminAccess has the share %+v", got)
	}
}

// The share of a pod is the sum of its replicas, and is in the first row of the device that has one of them. Pods whose
// limit is unknown, claims, and other devices have none.
func TestReplicaShares(t *testing.T) {
	const gib = 1 << 30
	running := func(uid, name string) runtime.Container {
		return runtime.Container{Pod: runtime.Pod{UID: uid, Namespace: "default", Name: name}}
	}
	r := replicaShares{used: &usedMemory{}, pods: podUIDs([]runtime.Container{
		running("1", "two"), running("1", "two"), running("2", "unlimited"), running("3", "recreated"), running("4", "recreated"), running("3", "recreated"),
	})}
	for uid, limit := range map[string]uint64{"1": 40 * gib, "2": gpu.MemoryUnlimited, "3": gib, "4": gib} {
		r.used.record(uid, podMemory{"GPU-a": {limit: limit, used: gib, ceiling: 50}})
	}
	hold := func(pod, container, claim, device string) {
		r.held = append(r.held, kubelet.Holder{Namespace: "default", Pod: pod, Container: container, Claim: claim, Resource: allocator.GPUResource, Device: device})
	}
	hold("two", "side", "", "GPU-a::0")
	hold("two", "main", "", "GPU-a::1")
	hold("two", "claims", "claim", "GPU-a::2")
	hold("two", "other", "", "GPU-b")
	hold("unlimited", "main", "", "GPU-a::3")
	hold("starting", "main", "", "GPU-a::2")
	hold("recreated", "main", "", "GPU-a::2")
	devices := []status.Device{
		{ID: "GPU-a", Resource: allocator.GPUResource, Replicas: []string{"GPU-a::0", "GPU-a::2"}},
		{ID: "GPU-a", Resource: allocator.GPUResource, Replicas: []string{"GPU-a::1", "GPU-a::3"}},
		{ID: "GPU-b", Resource: allocator.GPUResource},
		{ID: "GPU-c", Resource: "gpu.nvidia.com", Sharing: &status.Sharing{Shares: []status.Share{{Namespace: "default", Claim: "claim", Pods: []string{"two"}}}}},
	}
	r.set(devices)
	setContainers(devices, r.held)
	want := &status.Sharing{Shares: []status.Share{{
		Namespace: "default", Pods: []string{"two"}, Containers: []string{"main", "side"}, Amount: status.Amount{MemoryBytes: 40 * gib, Replicas: 2}, MemoryLimited: true,
		ComputeCeiling: 50, MemoryUsed: new(uint64(gib)),
	}}}
	if got := devices[0].Sharing; !reflect.DeepEqual(got, want) || devices[1].Sharing != nil || devices[2].Sharing != nil {
		t.Errorf("%+v, want %+v; of the other rows %+v and %+v", got, want, devices[1].Sharing, devices[2].Sharing)
	}
	if got := devices[3].Sharing.Shares[0].Containers; !slices.Equal(got, []string{"claims"}) {
		t.Errorf("containers %v use the claim", got)
	}
}
