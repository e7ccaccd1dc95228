package driver

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

var triplets = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

// jetson returns the root of a Jetson with that SoC and serial number, a new machine ID, and without NVML. If serial is
// empty, the Jetson has no serial number.
func jetson(t *testing.T, soc, serial string) string {
	t.Helper()
	root := t.TempDir()
	files := map[string]string{
		"etc/nv_tegra_release": "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref, EABI: aarch64\n",
		"etc/machine-id":       rand.Text() + "\n",
		"proc/meminfo":         "MemTotal:       15823412 kB\nMemFree:         1000000 kB\n",
		"usr/lib/" + triplets[runtime.GOARCH] + "/tegra/libcuda.so.1.1": "",
		"sys/firmware/devicetree/base/compatible":                       "nvidia,p3509-0000\x00" + soc + "\x00",
	}
	if serial != "" {
		files["sys/firmware/devicetree/base/serial-number"] = serial + "\x00"
	}
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestJetsonWithoutNVML(t *testing.T) {
	read := func(root string) gpu.Inventory {
		t.Helper()
		s := Read(t.Context(), Config{Node: host.NewRoot(root), Worker: "/no/worker"})
		if s.Err != nil || len(s.Inventory.GPUs) != 1 || s.Driver.LibraryDir == "" {
			t.Fatalf("got %+v, want one GPU", s)
		}
		if _, probed := s.Probes[s.Inventory.GPUs[0].UUID]; !probed {
			t.Error("the GPU is not probed")
		}
		return *s.Inventory
	}
	inv := read(jetson(t, "nvidia,tegra194", "1421620034151"))
	got := inv.GPUs[0]
	want := gpu.GPU{UUID: got.UUID, Minor: gpu.MinorUnknown, NUMANode: gpu.NUMAUnknown, Product: "Xavier", Architecture: "Volta",
		ComputeCapability: gpu.ComputeCapability{Major: 7, Minor: 2}, MemoryBytes: 15823412 << 10, MIG: gpu.MIGUnsupported}
	if !reflect.DeepEqual(got, want) || inv.Platform != gpu.Jetson || inv.Driver != (gpu.Driver{Version: "35.4.1"}) {
		t.Errorf("got %+v on %+v, want %+v", got, inv, want)
	}
	if !regexp.MustCompile(`^GPU-[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(got.UUID) {
		t.Errorf("got UUID %s", got.UUID)
	}
	for name, other := range map[string]struct {
		soc, serial string
		same        bool
	}{
		"reinstalled":      {"nvidia,tegra194", "1421620034151", true},
		"another module":   {"nvidia,tegra194", "1421620034152", false},
		"no serial number": {"nvidia,tegra194", "", false},
		"unknown SoC":      {"nvidia,tegra999", "1421620034151", false},
	} {
		if g := read(jetson(t, other.soc, other.serial)).GPUs[0]; (g.UUID == got.UUID) != other.same {
			t.Errorf("%s: UUID %s, before %s", name, g.UUID, got.UUID)
		}
	}
}

// The files may be temporarily unreadable, and an upgrade of JetPack moves the libraries or adds NVML.
func TestJetsonFollowsTheNode(t *testing.T) {
	root := jetson(t, "nvidia,tegra234", "1421620034151")
	tree := filepath.Join(root, "sys/firmware/devicetree/base")
	libraries := filepath.Join(root, "usr/lib", triplets[runtime.GOARCH])
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var steps []string
	step := func(name string, err error) {
		if err != nil {
			t.Error(err)
		}
		steps = append(steps, name)
	}
	cfg := Config{Node: host.NewRoot(root), Interval: time.Millisecond, CallTimeout: time.Second, Worker: "/no/worker"}
	Run(ctx, cfg, &Settings{}, nil, func(r Report) {
		s, is := r.(Snapshot)
		switch {
		case !is:
		case len(steps) == 0 && s.Err == nil:
			step("removed", os.Rename(tree, tree+".away"))
		case len(steps) == 1 && s.Err != nil:
			step("restored", os.Rename(tree+".away", tree))
		case len(steps) == 2 && s.Err == nil:
			step("libraries moved", os.Rename(filepath.Join(libraries, "tegra"), filepath.Join(libraries, "nvidia")))
		case len(steps) == 3 && s.Err == nil && path.Base(s.Driver.LibraryDir) == "nvidia":
			step("NVML installed", os.WriteFile(filepath.Join(libraries, "nvidia", host.NVMLName), nil, 0o600))
		case len(steps) == 4 && s.Err != nil: // there is no worker
			step("worker start attempted", nil)
			cancel()
		}
	})
	if len(steps) != 5 {
		t.Errorf("got only the steps %v", steps)
	}
}
