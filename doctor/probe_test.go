package doctor

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
)

// The test requires no GPU: /bin/sh replaces the driver worker, since any program linked to glibc runs the loader.
func TestProbe(t *testing.T) {
	var out strings.Builder
	if err := Probe(t.Context(), "/bin/sh", []string{"/dev/null", "/dev/nvidia-none", "libm.so.6", "libnvidia-none.so.1"}, &out); err != nil {
		t.Fatal(err)
	}
	var found contents
	if err := json.Unmarshal([]byte(out.String()), &found); err != nil {
		t.Fatal(err)
	}
	if found.Nodes["/dev/null"] != 0 || found.Nodes["/dev/nvidia-none"] != syscall.ENOENT || len(found.Nodes) != 2 {
		t.Errorf("nodes: %v", found.Nodes)
	}
	if found.Libraries["libm.so.6"] != "" || found.Libraries["libnvidia-none.so.1"] != "libnvidia-none.so.1: cannot open shared object file" {
		t.Errorf("libraries: %v", found.Libraries)
	}
}

func TestProbeWithoutLoader(t *testing.T) {
	if _, err := findLibrary(t.Context(), "/nonexistent/gpucdi-nvml", cudaName); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("error %v", err)
	}
}
