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

func unhealthyNode() *Resource {
	inv := topologies["4 on PCIe, 2 NUMA nodes"]()
	inv.GPUs[2].Fault = fault("XID 79: fell off the bus")
	return plan(inv)
}

func TestPlan(t *testing.T) {
	inv := topologies["4 on PCIe, 2 NUMA nodes"]()
	inv.GPUs[3].Fault = fault("broken")
	r := plan(inv)
	want := []Device{
		{ID: "GPU-0", CDINames: []string{"example.com/gpu=GPU-0"}, GPU: "GPU-0", Resource: GPUResource, Index: "0", NUMANode: 0, instances: wholeGPU},
		{ID: "GPU-1", CDINames: []string{"example.com/gpu=GPU-1"}, GPU: "GPU-1", Resource: GPUResource, Index: "1", NUMANode: 0, instances: wholeGPU},
		{ID: "GPU-2", CDINames: []string{"example.com/gpu=GPU-2"}, GPU: "GPU-2", Resource: GPUResource, Index: "2", NUMANode: 1, instances: wholeGPU},
		{ID: "GPU-3", CDINames: []string{"example.com/gpu=GPU-3"}, GPU: "GPU-3", Resource: GPUResource, Index: "3", NUMANode: 1, Fault: fault("broken"), instances: wholeGPU},
	}
	if r.Name != "nvidia.com/gpu" || !reflect.DeepEqual(r.Devices, want) {
		t.Errorf("Plan = %s %v, want nvidia.com/gpu %v", r.Name, r.Devices, want)
	}
	if none := Plan(&gpu.Inventory{}, testKind, Policy{MIG: MIGNone}); len(none) != 1 || len(none[0].Devices) != 0 {
		t.Errorf("got %v without GPUs, want the resource without devices", none)
	}
}

func TestLookup(t *testing.T) {
	devices, err := unhealthyNode().Lookup([]string{"GPU-3", "GPU-0"})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(devices, []int{0, 3}) {
		t.Errorf("Lookup = %v, want 0 and 3", devices)
	}
}

func TestLookupErrors(t *testing.T) {
	sentinels := []error{ErrMalformed, ErrUnknown}
	for _, tc := range []struct {
		name    string
		ids     []string
		is      []error
		message []string
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
			devices, err := unhealthyNode().Lookup(tc.ids)
			if err == nil {
				t.Fatalf("Lookup = %v, want an error", devices)
			}
			for _, sentinel := range sentinels {
				if got, want := errors.Is(err, sentinel), slices.Contains(tc.is, sentinel); got != want {
					t.Errorf("errors.Is(err, %q) = %t, want %t: %v", sentinel, got, want, err)
				}
			}
			for _, part := range append(tc.message, "nvidia.com/gpu") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not contain %q", err, part)
				}
			}
		})
	}
}

func TestLookupReportsDuplicatesOnce(t *testing.T) {
	_, err := unhealthyNode().Lookup([]string{"GPU-1", "GPU-1", "GPU-1", "GPU-3", "GPU-3"})
	if n := strings.Count(err.Error(), "more than once"); n != 2 {
		t.Errorf("got %d problems for two duplicates: %v", n, err)
	}
}

// The kubelet stores the error in the pod status, so its size must not grow with the request.
func TestErrorSizeIsBounded(t *testing.T) {
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
		call    func() error
		is      []error
		message string
	}{
		"many unknown":   {func() error { _, err := unhealthyNode().Lookup(unknown); return err }, []error{ErrUnknown}, "89990 more"},
		"a long ID":      {func() error { _, err := unhealthyNode().Lookup([]string{strings.Repeat("G", 4<<20)}); return err }, []error{ErrUnknown}, "4194304 bytes"},
		"many required":  {func() error { _, err := unhealthyNode().Prefer(nil, unknown, len(unknown)); return err }, []error{ErrUnknown}, "89990 more"},
		"many unhealthy": {func() error { _, err := plan(unhealthy).Prefer(all, nil, 1); return err }, []error{ErrUnhealthy}, "990 more"},
	} {
		err := tc.call()
		if err == nil || len(err.Error()) > 8<<10 || !strings.Contains(err.Error(), tc.message) {
			t.Errorf("%s: error of %d bytes, want at most 8 KiB with %q", name, len(fmt.Sprint(err)), tc.message)
		}
		for _, sentinel := range tc.is {
			if !errors.Is(err, sentinel) {
				t.Errorf("%s: the error does not wrap %q", name, sentinel)
			}
		}
	}
}

func fault(message string) gpu.Fault { return gpu.Fault{Code: gpu.FaultUnresponsive, Message: message} }
