package agent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
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

// Pods that joined a claim stay known while the kubelet's checkpoint cannot be read, because they may hold devices.
func TestJoinedPodsStayKnown(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "dra_manager_state")
	c := &claims{node: host.NewRoot("/"), kubeletDir: dir, gate: allocator.NewGate(time.Now)}
	c.gate.Restore(allocator.Claim{UID: "u", Pods: []string{"first"}})
	for _, tc := range []struct {
		name, text string
		fails      bool
		want       []string
	}{
		{"no checkpoint", "", false, []string{"first"}},
		{"a pod joined", `{"Data":"{\"ClaimInfoStateList\":[{\"ClaimUID\":\"u\",\"PodUIDs\":{\"first\":{},\"joined\":{}}}]}"}`, false, []string{"first", "joined"}},
		{"the pod left", `{"Data":"{\"ClaimInfoStateList\":[{\"ClaimUID\":\"u\",\"PodUIDs\":{\"first\":{}}}]}"}`, false, []string{"first", "joined"}},
		{"damaged", "{", true, []string{"first", "joined"}},
	} {
		if tc.text != "" {
			if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.readPods(); (err != nil) != tc.fails {
			t.Errorf("%s: error %v", tc.name, err)
		}
		if pods := slices.Sorted(slices.Values(c.gate.Claims()[0].Pods)); !slices.Equal(pods, tc.want) {
			t.Errorf("%s: pods %q, want %q", tc.name, pods, tc.want)
		}
	}
	if err := errors.Join(os.Remove(path), c.readPods()); err != nil {
		t.Fatal(err)
	}
	if pods := c.gate.Claims()[0].Pods; len(pods) != 2 {
		t.Errorf("without the file: pods %q, want both", pods)
	}
}
