package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/internal/host"
)

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
