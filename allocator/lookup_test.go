package allocator

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

func sickNode() *Resource {
	inv := topologies["4 on PCIe, 2 NUMA nodes"]()
	inv.GPUs[2].Fault = fault("XID 79: fell off the bus")
	return plan(inv)
}

func TestPlan(t *testing.T) {
	inv := topologies["4 on PCIe, 2 NUMA nodes"]()
	inv.GPUs[3].Fault = fault("broken")
	r := plan(inv)
	want := []Device{
		{ID: "GPU-0", CDIName: "example.com/gpu=GPU-0", GPU: "GPU-0", Index: "0", NUMANode: 0, part: wholeGPU},
		{ID: "GPU-1", CDIName: "example.com/gpu=GPU-1", GPU: "GPU-1", Index: "1", NUMANode: 0, part: wholeGPU},
		{ID: "GPU-2", CDIName: "example.com/gpu=GPU-2", GPU: "GPU-2", Index: "2", NUMANode: 1, part: wholeGPU},
		{ID: "GPU-3", CDIName: "example.com/gpu=GPU-3", GPU: "GPU-3", Index: "3", NUMANode: 1, Fault: fault("broken"), part: wholeGPU},
	}
	if r.Name != "nvidia.com/gpu" || !reflect.DeepEqual(r.Devices, want) {
		t.Errorf("Plan = %s %v, want nvidia.com/gpu %v", r.Name, r.Devices, want)
	}
	if none := Plan(&gpu.Inventory{}, testKind, MIGNone, nil); len(none) != 1 || len(none[0].Devices) != 0 {
		t.Errorf("a node without GPUs offers %v, want the resource without devices", none)
	}
}

func TestLookup(t *testing.T) {
	devices, err := sickNode().Lookup([]string{"GPU-3", "GPU-0"})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(devices, []int{0, 3}) {
		t.Errorf("Lookup = %v, want GPU-0 and GPU-3 in the resource's order", devices)
	}
}

func TestLookupErrors(t *testing.T) {
	sentinels := []error{ErrMalformed, ErrUnknown}
	for _, tc := range []struct {
		name string
		ids  []string
		is   []error
		says []string
	}{
		{"nil", nil, []error{ErrMalformed}, nil},
		{"empty", []string{}, []error{ErrMalformed}, nil},
		{"unknown", []string{"GPU-0", "GPU-9"}, []error{ErrUnknown}, []string{`"GPU-9"`}},
		{"empty id", []string{""}, []error{ErrUnknown}, []string{`""`}},
		{"twice", []string{"GPU-1", "GPU-0", "GPU-1"}, []error{ErrMalformed}, []string{"GPU-1"}},
		{"everything", []string{"GPU-8", "GPU-2", "GPU-1", "GPU-1", "GPU-9"}, sentinels,
			[]string{`"GPU-8"`, `"GPU-9"`, "GPU-1 of"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			devices, err := sickNode().Lookup(tc.ids)
			if err == nil {
				t.Fatalf("Lookup = %v, want an error", devices)
			}
			for _, sentinel := range sentinels {
				if got, want := errors.Is(err, sentinel), slices.Contains(tc.is, sentinel); got != want {
					t.Errorf("errors.Is(err, %q) = %t, want %t: %v", sentinel, got, want, err)
				}
			}
			for _, part := range append(tc.says, "nvidia.com/gpu") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %s", err, part)
				}
			}
		})
	}
}

func TestLookupNamesEachDuplicateOnce(t *testing.T) {
	_, err := sickNode().Lookup([]string{"GPU-1", "GPU-1", "GPU-1", "GPU-3", "GPU-3"})
	if n := strings.Count(err.Error(), "more than once"); n != 2 {
		t.Errorf("two devices repeated, %d complaints: %v", n, err)
	}
}

// The kubelet stores the error in the pod's status, so its size must not follow the request's.
func TestErrorsAreBounded(t *testing.T) {
	unknown := make([]string, 90_000)
	for i := range unknown {
		unknown[i] = "GPU-unknown-" + strconv.Itoa(i)
	}
	unhealthy := &gpu.Inventory{}
	for i := range 1000 {
		unhealthy.GPUs = append(unhealthy.GPUs, gpu.GPU{UUID: "GPU-" + strconv.Itoa(i), Fault: fault("XID 79")})
	}
	all := make([]string, len(unhealthy.GPUs))
	for i, g := range unhealthy.GPUs {
		all[i] = g.UUID
	}
	for name, tc := range map[string]struct {
		call func() error
		is   []error
		says string
	}{
		"many unknown":   {func() error { _, err := sickNode().Lookup(unknown); return err }, []error{ErrUnknown}, "89990 more"},
		"an endless one": {func() error { _, err := sickNode().Lookup([]string{strings.Repeat("G", 4<<20)}); return err }, []error{ErrUnknown}, "4194304 bytes"},
		"many required":  {func() error { _, err := sickNode().Prefer(nil, unknown, len(unknown)); return err }, []error{ErrUnknown}, "89990 more"},
		"many unhealthy": {func() error { _, err := plan(unhealthy).Prefer(all, nil, 1); return err }, []error{ErrUnhealthy}, "990 more"},
	} {
		err := tc.call()
		if err == nil || len(err.Error()) > 8<<10 || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: the error has %d bytes, want a few thousand with %q", name, len(fmt.Sprint(err)), tc.says)
		}
		for _, sentinel := range tc.is {
			if !errors.Is(err, sentinel) {
				t.Errorf("%s: the error is no %q", name, sentinel)
			}
		}
	}
}

func fault(message string) gpu.Fault { return gpu.Fault{Code: gpu.FaultUnresponsive, Message: message} }
