package agent

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
)

// A claim waits for a device that the CDI spec may contain soon, and is refused immediately for others.
func TestInjectable(t *testing.T) {
	lost := &gpu.Inventory{GPUs: []gpu.GPU{{UUID: "GPU-lost", Fault: gpu.Fault{Code: gpu.FaultGone, Message: "no device node"}}}}
	none := map[string]bool{}
	for _, tc := range []struct {
		name, id string
		plan     plan
		is       error
		text     string
	}{
		{"in the spec", "GPU-0", plan{verified: map[string]bool{"gpucdi.dev/gpu=GPU-0": true}}, nil, ""},
		{"before the first spec", "GPU-0", plan{}, allocator.ErrHeld, "not written yet"},
		{"no driver", "GPU-0", plan{verified: none, inventory: lost, driverErr: errors.New("not loaded")}, allocator.ErrHeld, "not loaded"},
		{"disk full", "GPU-0", plan{verified: none, inventory: lost, specErr: errors.New("no space left")}, allocator.ErrHeld, "no space left"},
		{"faulty", "GPU-lost", plan{verified: none, inventory: lost}, allocator.ErrUnhealthy, "no device node"},
		{"gone", "GPU-0", plan{verified: none, inventory: lost}, allocator.ErrUnhealthy, "does not contain it"},
	} {
		if err := tc.plan.injectable(tc.id); !errors.Is(err, tc.is) || err != nil && !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: error %v, want %v with %q", tc.name, err, tc.is, tc.text)
		}
	}
}
