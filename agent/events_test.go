package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

func TestEvent(t *testing.T) {
	known := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-a", Product: "NVIDIA H100"}, {UUID: "GPU-b", Product: "NVIDIA A100"}}}
	one := []allocator.Device{{ID: "GPU-a", GPU: "GPU-a", Index: "5"}}
	several := append(one, allocator.Device{ID: "MIG-c", GPU: "GPU-b", Index: "6:1"})
	xid := gpu.Fault{Code: "xid_48", Message: "XID 48: memory had an error that cannot be corrected", Remedy: "reset the GPU"}
	for _, tc := range []struct {
		fault   gpu.Fault
		devices []allocator.Device
		want    cluster.Event
	}{
		{
			gpu.Fault{}, one,
			cluster.Event{Type: cluster.Normal, Reason: "GPUHealthy", Message: "GPU 5 (NVIDIA H100, GPU-a) is healthy again"},
		},
		{
			xid, one,
			cluster.Event{Type: cluster.Warning, Reason: "GPUUnhealthy",
				Message: "GPU 5 (NVIDIA H100, GPU-a) is unhealthy: XID 48: memory had an error that cannot be corrected; reset the GPU"},
		},
		{
			gpu.Fault{Code: gpu.FaultDriver, Message: "the NVIDIA driver was removed"}, several[1:],
			cluster.Event{Type: cluster.Warning, Reason: "GPUDriverFailed", Message: "GPU 6:1 (NVIDIA A100, MIG-c) is unhealthy: the NVIDIA driver was removed"},
		},
		{
			gpu.Fault{}, several,
			cluster.Event{Type: cluster.Normal, Reason: "GPUHealthy", Message: "GPUs 5, 6:1 are healthy again"},
		},
		{
			gpu.Gone(), []allocator.Device{{ID: "GPU-a", GPU: "GPU-a", Index: "5", State: allocator.StateDraining, Replicas: []string{"GPU-a::3"}}},
			cluster.Event{Type: cluster.Warning, Reason: "GPUUnhealthy", Message: "replicas of GPU 5 (NVIDIA H100, GPU-a) are unhealthy: " + gpu.Gone().String()},
		},
	} {
		s := &snapshot{known: known}
		devices := slices.Clone(tc.devices)
		for i := range devices {
			devices[i].Fault = tc.fault
		}
		if got := s.event(devices); got != tc.want {
			t.Errorf("got  %+v\nwant %+v", got, tc.want)
		}
	}
}

// Events report new and cleared faults, not planned changes.
func TestGroupByFault(t *testing.T) {
	lost, spec := gpu.Gone(), gpu.Fault{Code: gpu.FaultSpec, Message: "disk full"}
	later := spec
	later.Since = time.Unix(1, 0)
	device := func(id string, state allocator.State, fault gpu.Fault) allocator.Device {
		return allocator.Device{ID: id, State: state, Fault: fault}
	}
	available := device("", allocator.StateAvailable, gpu.Fault{})
	var got []string
	for _, group := range groupByFault([]allocator.Change{
		{Before: available, Now: device("a", allocator.StateUnavailable, spec)},
		{Before: available, Now: device("b", allocator.StateDraining, gpu.Fault{})},
		{Before: available, Now: device("c", allocator.StateDraining, lost)},
		{Before: available, Now: device("d", allocator.StateUnavailable, later)},
		{Now: device("e", allocator.StateAvailable, gpu.Fault{})},
		{Before: device("", allocator.StateWaiting, gpu.Fault{}), Now: device("f", allocator.StateAvailable, gpu.Fault{})},
		{Before: device("", allocator.StateDraining, lost), Now: device("g", allocator.StateAvailable, gpu.Fault{})},
		{Before: device("", allocator.StateUnavailable, spec), Now: device("h", allocator.StateDraining, gpu.Fault{})},
		{Before: device("", allocator.StateUnavailable, spec), Now: device("i", allocator.StateAvailable, gpu.Fault{})},
	}) {
		ids := string(group[0].Fault.Code) + ":"
		for _, d := range group {
			ids += d.ID
		}
		got = append(got, ids)
	}
	if want := []string{"spec:ad", "gone:c", ":gi"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// An Event reports devices that another outlet released. Devices that waited for something else cause no Event.
func TestMoved(t *testing.T) {
	device := func(id string, state allocator.State) allocator.Device {
		return allocator.Device{ID: id, GPU: id, Index: id[len(id)-1:], State: state}
	}
	change := func(outlet, id string, before allocator.State) allocator.Change {
		return allocator.Change{Resource: outlet, Before: device(id, before), Now: device(id, allocator.StateAvailable)}
	}
	const slice = allocator.SliceOutlet
	before := []*allocator.Resource{
		{Name: "nvidia.com/gpu", Devices: []allocator.Device{device("GPU-0", allocator.StateDraining), device("GPU-1", allocator.StateReleased),
			device("GPU-2", allocator.StateWaiting), device("GPU-4", allocator.StateAvailable)}},
		{Name: slice, Devices: []allocator.Device{device("GPU-0", allocator.StateWaiting), device("GPU-1", allocator.StateWaiting),
			device("GPU-3", allocator.StateWaiting), device("GPU-4", allocator.StateUnavailable)}},
	}
	changes := []allocator.Change{
		change(slice, "GPU-0", allocator.StateWaiting), change(slice, "GPU-1", allocator.StateWaiting),
		change("nvidia.com/gpu", "GPU-2", allocator.StateWaiting), // such as a repartitioned GPU
		change(slice, "GPU-3", allocator.StateWaiting),            // such as one that a container outside Kubernetes had
		change(slice, "GPU-4", allocator.StateUnavailable),
		change("nvidia.com/gpu", "GPU-3", allocator.StateWaiting), // back
	}
	s := &snapshot{known: &gpu.Inventory{}, claims: &claims{driverName: "gpu.nvidia.com"}}
	want := []cluster.Event{
		{Type: cluster.Normal, Reason: "GPUMoved", Message: "GPU 3 (, GPU-3) is now allocated through nvidia.com/gpu"},
		{Type: cluster.Normal, Reason: "GPUMoved", Message: "GPUs 0, 1 are now allocated through gpu.nvidia.com"},
	}
	if got := s.moved(before, changes); !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestDriverFault(t *testing.T) {
	for name, err := range map[string]error{"missing": &host.NoDriverError{}, "broken": errors.New("no libcuda")} {
		f := driverFault(fmt.Errorf("reading the driver: %w", err))
		if f.Code != gpu.FaultDriver || (f.Remedy != "") != (name == "missing") || f.Message == "" {
			t.Errorf("%s: %+v", name, f)
		}
	}
}
