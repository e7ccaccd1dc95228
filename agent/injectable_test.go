package agent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
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

// Only the devices that a claim has from this driver count, and those of this node.
func TestKubeletDevices(t *testing.T) {
	dir := t.TempDir()
	c := &claims{node: host.NewRoot("/"), kubeletDir: dir, driverName: "gpu.nvidia.com", poolName: "node"}
	if names, err := c.kubeletDevices("uid-a"); len(names) > 0 || err != nil {
		t.Errorf("devices %q, error %v without a checkpoint", names, err)
	}
	device := func(pool, name string) string {
		return `{\"PoolName\":\"` + pool + `\",\"DeviceName\":\"` + name + `\"}`
	}
	claim := func(uid, driver, devices string) string {
		return `{\"ClaimUID\":\"` + uid + `\",\"DriverState\":{\"` + driver + `\":{\"Devices\":[` + devices + `]}}}`
	}
	text := `{"Data":"{\"ClaimInfoStateList\":[` + strings.Join([]string{
		claim("uid-a", "gpu.nvidia.com", device("node", "gpu-0")+","+device("other", "gpu-1")),
		claim("uid-b", "gpu.nvidia.com", device("node", "gpu-2")),
		claim("uid-a", "other", device("node", "gpu-3")),
	}, ",") + `]}"}`
	if err := os.WriteFile(filepath.Join(dir, "dra_manager_state"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if names, err := c.kubeletDevices("uid-a"); !slices.Equal(names, []string{"gpu-0"}) || err != nil {
		t.Errorf("devices %q, error %v", names, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "dra_manager_state"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if names, err := c.kubeletDevices("uid-a"); err == nil {
		t.Errorf("devices %q of a damaged checkpoint", names)
	}
}
