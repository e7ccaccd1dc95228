package agent

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/status"
)

func TestTheDocumentHasTheCategories(t *testing.T) {
	text, err := os.ReadFile("../docs/health.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, category := range []string{faultUnreadable, faultDriver, faultSpec, faultDeviceNode, faultConfig, faultWaits, faultLeft} {
		if !strings.Contains(string(text), " | `"+category+"` | ") {
			t.Errorf("docs/health.md does not tell the category %s", category)
		}
	}
}

// A fault is as old as it was, and not as old as that of other replicas of the same
// device, or of the same device as something else.
func TestFaultsKeepTheirTime(t *testing.T) {
	long := time.Now().Add(-time.Hour)
	n := &node{health: &health.Tracker{}, known: &gpu.Inventory{}, offered: &gpu.Inventory{}}
	before := &status.Node{Devices: []status.Device{
		{ID: "GPU-a", Resource: "r", Replicas: []string{"GPU-a::0", "GPU-a::1"}},
		{ID: "GPU-a", Resource: "r", Replicas: []string{"GPU-a::2", "GPU-a::3"}, Fault: &status.Fault{Since: long}},
		{ID: "GPU-b", Resource: "r", Fault: &status.Fault{Since: long}},
	}}
	for _, tc := range []struct {
		device, resource string
		replicas         []string
		since            bool
	}{
		{"GPU-a", "r", []string{"GPU-a::0", "GPU-a::1"}, false},
		{"GPU-a", "r", []string{"GPU-a::3"}, true},
		{"GPU-b", "r", nil, true},
		{"GPU-b", "other", nil, false},
	} {
		f := n.fault(allocator.Device{ID: tc.device, Fault: "sick", Replicas: tc.replicas}, tc.resource, before)
		if f.Since.Equal(long) != tc.since {
			t.Errorf("%v: the fault is since %s", tc, f.Since)
		}
	}
}
