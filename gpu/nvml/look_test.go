package nvml

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/gpucdi/gpucdi/gpu/driver"
)

// Here is no GPU, so only what is missing can be seen.
func TestLook(t *testing.T) {
	var out strings.Builder
	if err := Look([]string{"/dev/null", "/dev/nvidia-none", "libc.so.6", "libnvidia-none.so.1"}, &out); err != nil {
		t.Fatal(err)
	}
	var seen driver.Sight
	if err := json.Unmarshal([]byte(out.String()), &seen); err != nil {
		t.Fatal(err)
	}
	if seen.Nodes["/dev/null"] != 0 || seen.Nodes["/dev/nvidia-none"] != syscall.ENOENT || len(seen.Nodes) != 2 {
		t.Errorf("nodes: %v", seen.Nodes)
	}
	if seen.Libraries["libc.so.6"] != "" || !strings.Contains(seen.Libraries["libnvidia-none.so.1"], "cannot open shared object file") {
		t.Errorf("libraries: %v", seen.Libraries)
	}
}
