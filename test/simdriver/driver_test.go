package simdriver_test

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

func install(t *testing.T, p simdriver.Profile) *simdriver.Driver {
	t.Helper()
	return installAt(t, t.TempDir(), p)
}

func installAt(t *testing.T, root string, p simdriver.Profile) *simdriver.Driver {
	t.Helper()
	d, err := simdriver.Install(root, p)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// smi runs the driver's nvidia-smi and returns its output.
func smi(t *testing.T, d *simdriver.Driver, args ...string) string {
	t.Helper()
	out, err := d.Command("nvidia-smi", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nvidia-smi %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func TestSMIList(t *testing.T) {
	for _, tc := range []struct {
		profile simdriver.Profile
		gpus    int
		mig     int
	}{
		{simdriver.H100x8(), 8, 0},
		{simdriver.A100MIG(), 8, 20},
		{simdriver.PCIe4(), 4, 0},
		{simdriver.GTX1060x2(), 2, 0},
		{simdriver.GPUs16(), 16, 0},
	} {
		t.Run(tc.profile.Name, func(t *testing.T) {
			d := install(t, tc.profile)
			var want []string
			for i, g := range d.State().GPUs {
				want = append(want, fmt.Sprintf("GPU %d: %s (UUID: %s)", i, g.Name, g.UUID))
			}
			lines := strings.Split(strings.TrimSpace(smi(t, d, "-L")), "\n")
			mig := 0
			lines = slices.DeleteFunc(lines, func(line string) bool {
				if strings.HasPrefix(line, "  MIG ") {
					mig++
					return true
				}
				return false
			})
			if !slices.Equal(lines, want) || len(want) != tc.gpus {
				t.Errorf("nvidia-smi -L lists %d GPUs:\n%s\nwant %d:\n%s", len(lines), strings.Join(lines, "\n"), tc.gpus, strings.Join(want, "\n"))
			}
			if mig != tc.mig {
				t.Errorf("nvidia-smi -L lists %d MIG devices, want %d", mig, tc.mig)
			}
		})
	}
}

func TestSMIQuery(t *testing.T) {
	d := install(t, simdriver.GTX1060x2())
	must(t, d.Update(func(s *simdriver.State) error { s.GPUs[1].Temperature = simdriver.NotSupported; return nil }))
	g := d.State().GPUs
	for _, tc := range []struct{ query, format, want string }{
		{"index,uuid", "csv", "index, uuid\n0, " + g[0].UUID + "\n1, " + g[1].UUID + "\n"},
		{"name,memory.total", "csv,noheader", "NVIDIA GeForce GTX 1060 6GB, 6144 MiB\nNVIDIA GeForce GTX 1060 6GB, 6144 MiB\n"},
		{"temperature.gpu", "csv,noheader", fmt.Sprintf("%d\n[N/A]\n", g[0].Temperature)},
		{"memory.total,mig.mode.current", "csv,noheader,nounits", "6144, [N/A]\n6144, [N/A]\n"},
	} {
		if got := smi(t, d, "--query-gpu="+tc.query, "--format="+tc.format); got != tc.want {
			t.Errorf("query %s as %s:\n%swant\n%s", tc.query, tc.format, got, tc.want)
		}
	}
}

// The loader and ldconfig find libraries by SONAME, so each library needs one, and
// a symlink of that name in its directory.
func TestSONAMEs(t *testing.T) {
	root := t.TempDir()
	d := installAt(t, root, simdriver.GTX1060x2())
	version := d.State().Version
	dir := filepath.Join(root, simdriver.LibraryDir)
	found, err := filepath.Glob(filepath.Join(dir, "*.so."+version))
	must(t, err)
	if len(found) < 30 {
		t.Errorf("%d driver libraries, want at least 30", len(found))
	}
	for _, path := range append(found, filepath.Join(dir, "vdpau/libvdpau_nvidia.so."+version)) {
		f, err := elf.Open(path)
		must(t, err)
		names, err := f.DynString(elf.DT_SONAME)
		f.Close()
		must(t, err)
		if len(names) != 1 {
			t.Fatalf("%s has SONAMEs %q, want one", path, names)
		}
		target, err := filepath.EvalSymlinks(filepath.Join(filepath.Dir(path), names[0]))
		if err != nil || target != path {
			t.Errorf("symlink %s next to %s resolves to %q, %v", names[0], path, target, err)
		}
	}
}

func TestInstallKeepsOtherDrivers(t *testing.T) {
	root := t.TempDir()
	devices := filepath.Join(root, "proc/devices")
	before := "Character devices:\n  1 mem\n236 other\n511 another\n\nBlock devices:\n  7 loop\n"
	must(t, os.MkdirAll(filepath.Dir(devices), 0o755))
	must(t, os.WriteFile(devices, []byte(before), 0o644))

	d := installAt(t, root, simdriver.GTX1060x2())
	got, err := os.ReadFile(devices)
	must(t, err)
	want := "Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n" +
		"234 nvidia-caps-imex-channels\n235 nvidia-caps\n236 other\n510 nvidia-uvm\n511 another\n\nBlock devices:\n  7 loop\n"
	if string(got) != want {
		t.Errorf("proc/devices:\n%swant\n%s", got, want)
	}

	installAt(t, root, simdriver.GTX1060x2())
	again, err := os.ReadFile(devices)
	must(t, err)
	if string(again) != want {
		t.Errorf("proc/devices after the second Install:\n%swant\n%s", again, want)
	}

	must(t, d.Uninstall())
	after, err := os.ReadFile(devices)
	must(t, err)
	if string(after) != before {
		t.Errorf("proc/devices after Uninstall:\n%swant\n%s", after, before)
	}
}

// listing returns the driver's files below root, without directories, proc/devices
// and PCI devices.
func listing(t *testing.T, root string) (files []string) {
	t.Helper()
	must(t, filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		if err == nil && !e.IsDir() && rel != "proc/devices" && !strings.HasPrefix(rel, "sys/bus/pci") && !strings.HasPrefix(rel, "sys/devices") {
			files = append(files, rel)
		}
		return err
	}))
	return files
}

func TestUninstall(t *testing.T) {
	root := t.TempDir()
	d := installAt(t, root, simdriver.A100MIG())
	if n := len(listing(t, root)); n < 80 {
		t.Fatalf("%d driver files, want at least 80", n)
	}
	must(t, d.Uninstall())
	if left := listing(t, root); len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, " "))
	}
}

func TestInstallRefusesAbsoluteLinks(t *testing.T) {
	root, outside := t.TempDir(), t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "usr"), 0o755))
	must(t, os.Symlink(outside, filepath.Join(root, "usr/lib")))
	if _, err := simdriver.Install(root, simdriver.GTX1060x2()); err == nil {
		t.Error("Install followed an absolute symlink")
	}
	if files := listing(t, outside); len(files) > 0 {
		t.Errorf("files outside of the root: %s", strings.Join(files, " "))
	}
}

func TestInvalidStates(t *testing.T) {
	d := install(t, simdriver.GTX1060x2())
	g := d.State().GPUs
	for _, tc := range []struct {
		name string
		do   func() error
		want string
	}{
		{"unknown GPU", func() error { return d.Lose("GPU-unknown") }, "GPU-unknown"},
		{"duplicate GPU", func() error { return d.Add(g[0]) }, "share"},
		{"unknown function", func() error { return d.InjectFault(simdriver.Fault{Func: "nvmlNothing"}) }, "nvmlNothing"},
		{"fault of an unknown GPU", func() error { return d.InjectFault(simdriver.Fault{GPU: "GPU-unknown"}) }, "GPU-unknown"},
		{"MIG not supported", func() error { return d.Partition(g[0].UUID, "1g.5gb") }, "1g.5gb"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.do()
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want one that contains %q", err, tc.want)
			}
		})
	}
}
