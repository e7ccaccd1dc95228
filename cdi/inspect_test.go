package cdi_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

const (
	driverVersion = "580.95.05"
	libDir        = "usr/lib/x86_64-linux-gnu/"
)

var inventory = &gpu.Inventory{
	Driver: gpu.Driver{Version: driverVersion},
	GPUs: []gpu.GPU{
		{UUID: "GPU-a", Index: 0, Minor: 1, PCIBusID: "0000:18:00.0"},
		{UUID: "GPU-b", Index: 1, Minor: 0, PCIBusID: "0000:2a:00.0"},
	},
}

func TestInspect(t *testing.T) {
	node := newNode(t)
	parts, err := cdi.Inspect(node.root(), node.driver(t), inventory, nil)
	if err != nil {
		t.Fatal(err)
	}
	var sonames []string
	for _, l := range parts.Libraries {
		sonames = append(sonames, l.SONAME)
		if !strings.HasPrefix(l.HostPath, "/"+libDir) || !strings.Contains(l.HostPath, ".so.") {
			t.Errorf("unexpected library at %s", l.HostPath)
		}
	}
	want := []string{"libcuda.so.1", "libnvcuvid.so.1", "libnvidia-gpucomp.so." + driverVersion, "libnvidia-ml.so.1", "libnvidia-newcomer.so.1", "libnvidia-nvvm70.so.4", "libvdpau_nvidia.so.1"}
	if !reflect.DeepEqual(sonames, want) {
		t.Errorf("got libraries %v, want %v", sonames, want)
	}
	wantBinds := []cdi.Bind{
		{HostPath: "/usr/bin/nvidia-smi", ContainerPath: "/usr/bin/nvidia-smi"},
		{HostPath: "/usr/bin/nvidia-smi", ContainerPath: "/usr/local/nvidia/bin/nvidia-smi"},
		{HostPath: "/etc/OpenCL/vendors/nvidia.icd", ContainerPath: "/etc/OpenCL/vendors/nvidia.icd"},
	}
	if !reflect.DeepEqual(parts.Binds, wantBinds) {
		t.Errorf("got binds %v, want %v", parts.Binds, wantBinds)
	}
	wantControl := []cdi.DeviceNode{
		{Path: "/dev/nvidiactl", Major: 195, Minor: 255},
		{Path: "/dev/nvidia-uvm", Major: 511, Minor: 0},
		{Path: "/dev/nvidia-uvm-tools", Major: 511, Minor: 1},
	}
	if !reflect.DeepEqual(parts.Control, wantControl) {
		t.Errorf("got control nodes %v, want %v", parts.Control, wantControl)
	}
	wantGPUs := map[string][]cdi.DeviceNode{
		"GPU-a": {{Path: "/dev/nvidia1", Major: 195, Minor: 1}},
		"GPU-b": {{Path: "/dev/nvidia0", Major: 195, Minor: 0}},
	}
	if !reflect.DeepEqual(parts.GPUs, wantGPUs) || len(parts.Faults) != 0 {
		t.Errorf("got GPUs %v, faults %v, want %v", parts.GPUs, parts.Faults, wantGPUs)
	}
}

func TestInspectFeatures(t *testing.T) {
	n := newNode(t)
	driver := n.driver(t)
	const versioned = ".so." + driverVersion
	for feature, want := range map[cdi.Feature]struct {
		libraries, binds, control string
		drm                       bool
	}{
		cdi.Compute: {
			libraries: "libcuda.so.1 libnvidia-gpucomp" + versioned + " libnvidia-ml.so.1 libnvidia-newcomer.so.1 libnvidia-nvvm70.so.4",
			binds:     "/etc/OpenCL/vendors/nvidia.icd",
			control:   "/dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools",
		},
		cdi.Utility: {
			libraries: "libnvidia-ml.so.1",
			binds:     "/usr/bin/nvidia-smi /usr/local/nvidia/bin/nvidia-smi",
			control:   "/dev/nvidiactl",
		},
		cdi.Graphics: {
			libraries: "libEGL_nvidia.so.0 libGLX_nvidia.so.0 libnvidia-egl-gbm.so.1 libnvidia-glcore" + versioned + " libnvidia-gpucomp" + versioned,
			binds: "/usr/share/glvnd/egl_vendor.d/10_nvidia.json /usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json " +
				"/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json /usr/share/vulkan/icd.d/nvidia_icd.json",
			control: "/dev/nvidiactl /dev/nvidia-modeset",
			drm:     true,
		},
		cdi.Video: {
			libraries: "libcuda.so.1 libnvcuvid.so.1 libvdpau_nvidia.so.1",
			control:   "/dev/nvidiactl /dev/nvidia-uvm /dev/nvidia-uvm-tools",
		},
		cdi.Display: {
			binds:   "/usr/lib/xorg/modules/drivers/nvidia_drv.so /usr/lib64/xorg/modules/drivers/nvidia_drv.so",
			control: "/dev/nvidiactl /dev/nvidia-modeset",
			drm:     true,
		},
	} {
		t.Run(string(feature), func(t *testing.T) {
			parts, err := cdi.Inspect(n.root(), driver, inventory, cdi.Features{feature})
			if err != nil {
				t.Fatal(err)
			}
			var libraries, binds, control []string
			for _, l := range parts.Libraries {
				libraries = append(libraries, l.SONAME)
			}
			for _, b := range parts.Binds {
				binds = append(binds, b.ContainerPath)
			}
			for _, c := range parts.Control {
				control = append(control, c.Path)
			}
			for _, c := range []struct {
				kind string
				got  []string
				want string
			}{{"libraries", libraries, want.libraries}, {"binds", binds, want.binds}, {"control nodes", control, want.control}} {
				if got := strings.Join(c.got, " "); got != c.want {
					t.Errorf("got %s %s\nwant %s", c.kind, got, c.want)
				}
			}
			nodes := []cdi.DeviceNode{{Path: "/dev/nvidia1", Major: 195, Minor: 1}}
			if want.drm {
				nodes = append(nodes,
					cdi.DeviceNode{Path: "/dev/dri/card4", Major: 226, Minor: 4},
					cdi.DeviceNode{Path: "/dev/dri/by-path/pci-0000:18:00.0-card", Major: 226, Minor: 4},
					cdi.DeviceNode{Path: "/dev/dri/renderD132", Major: 226, Minor: 132},
					cdi.DeviceNode{Path: "/dev/dri/by-path/pci-0000:18:00.0-render", Major: 226, Minor: 132})
			}
			if !reflect.DeepEqual(parts.GPUs["GPU-a"], nodes) {
				t.Errorf("got nodes %v, want %v", parts.GPUs["GPU-a"], nodes)
			}
		})
	}
}

// Distributions install the X server modules of the driver in different directories. In containers they are in the
// module directories of the X server.
func TestInspectXServerModules(t *testing.T) {
	for dir, module := range map[string]string{
		"usr/lib/xorg/modules/drivers/":   "nvidia_drv.so",
		"usr/lib64/xorg/modules/drivers/": "nvidia_drv.so",
		libDir + "nvidia/xorg/":           "nvidia_drv.so",          // Ubuntu
		"usr/lib/nvidia/":                 "libglxserver_nvidia.so", // Debian
	} {
		n := newNode(t)
		n.remove(t, "usr/lib/xorg/modules/drivers/nvidia_drv.so")
		n.write(t, dir+module, "")
		parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, cdi.Features{cdi.Display})
		if err != nil {
			t.Fatal(err)
		}
		kind := map[string]string{"nvidia_drv.so": "drivers/", "libglxserver_nvidia.so": "extensions/"}[module]
		for _, modules := range []string{"/usr/lib/xorg/modules/", "/usr/lib64/xorg/modules/"} {
			if want := (cdi.Bind{HostPath: "/" + dir + module, ContainerPath: modules + kind + module}); !slices.Contains(parts.Binds, want) {
				t.Errorf("got binds %v, want them to contain %v", parts.Binds, want)
			}
		}
	}
}

func TestInspectLibraryAliases(t *testing.T) {
	n := newNode(t)
	for feature, want := range map[cdi.Feature]string{
		cdi.Compute: "libcuda.so libnvidia-ml.so", cdi.Utility: "libnvidia-ml.so", cdi.Graphics: "libGLX_indirect.so.0", cdi.Video: "libcuda.so vdpau/libvdpau_nvidia.so.1",
	} {
		parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, cdi.Features{feature})
		if err != nil {
			t.Fatal(err)
		}
		var aliases []string
		for _, l := range parts.Libraries {
			aliases = append(aliases, l.Aliases...)
		}
		if got := strings.Join(aliases, " "); got != want {
			t.Errorf("%s: got %s, want %s", feature, got, want)
		}
	}
}

func TestInspectRejectsUnavailableFeature(t *testing.T) {
	n := newNode(t)
	driver := n.driver(t)
	n.remove(t, libDir+"libEGL_nvidia.so."+driverVersion)
	n.remove(t, libDir+"libnvcuvid.so."+driverVersion)
	n.write(t, "proc/devices", "Character devices:\n195 nvidia\n511 nvidia-uvm\n")
	_, err := cdi.Inspect(n.root(), driver, inventory, cdi.Features{cdi.Graphics, cdi.Video, cdi.Display})
	for _, part := range []string{"libEGL_nvidia.so.0", "graphics", "libnvcuvid.so.1", "video", "modprobe nvidia-modeset"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("got error %v, want it to contain %q", err, part)
		}
	}
}

// Drivers before 545 register nvidia-frontend for all nodes with major number 195, even if nvidia-modeset is not
// loaded.
func TestInspectFrontendDriver(t *testing.T) {
	const devices = "Character devices:\n195 nvidia-frontend\n511 nvidia-uvm\n"
	modeset := cdi.DeviceNode{Path: "/dev/nvidia-modeset", Major: 195, Minor: 254}
	for _, tc := range []struct {
		feature cdi.Feature
		loaded  bool
		wantErr string
		want    bool // whether Control has nvidia-modeset
	}{
		{cdi.Graphics, true, "", true},
		{cdi.Graphics, false, "", false},
		{cdi.Display, true, "", true},
		{cdi.Display, false, "modprobe nvidia-modeset", false},
		{cdi.Compute, true, "", false},
	} {
		n := newNode(t)
		n.write(t, "proc/devices", devices)
		n.device(t, "dev/nvidia-modeset", 195, 254) // stays when the module is unloaded
		if tc.loaded {
			n.write(t, "sys/module/nvidia_modeset/initstate", "live\n")
		}
		parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, cdi.Features{tc.feature})
		if tc.wantErr == "" && err != nil || tc.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tc.wantErr)) {
			t.Errorf("%s, loaded %t: got error %v, want %q", tc.feature, tc.loaded, err, tc.wantErr)
			continue
		}
		if got := slices.Contains(parts.Control, modeset); got != tc.want {
			t.Errorf("%s, loaded %t: got control nodes %v", tc.feature, tc.loaded, parts.Control)
		}
		if control := (cdi.DeviceNode{Path: "/dev/nvidiactl", Major: 195, Minor: 255}); err == nil && (parts.Control[0] != control || parts.GPUs["GPU-b"][0].Major != 195) {
			t.Errorf("%s, loaded %t: got control nodes %v, GPUs %v", tc.feature, tc.loaded, parts.Control, parts.GPUs)
		}
	}
}

func TestInspectRejectsUnusableDriver(t *testing.T) {
	for _, tc := range []struct {
		name  string
		setup func(t *testing.T, n node)
		want  string
	}{
		{"no libcuda", func(t *testing.T, n node) { n.remove(t, libDir+"libcuda.so."+driverVersion) }, "libcuda.so.1"},
		{"malformed library", func(t *testing.T, n node) { n.write(t, libDir+"libcuda.so."+driverVersion, "x") }, "damaged"},
		{"uvm not loaded", func(t *testing.T, n node) { n.write(t, "proc/devices", "Character devices:\n195 nvidia\n") }, "modprobe nvidia-uvm"},
		{"other kernel module version", func(t *testing.T, n node) {
			n.write(t, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.1.2  Tue\n")
		}, "the kernel module has driver version 570.1.2, but NVML has " + driverVersion},
		{"other library version", func(t *testing.T, n node) {
			n.remove(t, libDir+"libcuda.so."+driverVersion)
			n.library(t, "libcuda.so.570.1", "libcuda.so.1")
		}, "has driver version 570.1, but the kernel module has " + driverVersion},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNode(t)
			driver := n.driver(t)
			tc.setup(t, n)
			_, err := cdi.Inspect(n.root(), driver, inventory, nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got error %v, want it to contain %q", err, tc.want)
			}
		})
	}
}

func TestInspectExcludesGPUWithWrongNode(t *testing.T) {
	n := newNode(t)
	if err := unix.Mknod(n.path("dev/nvidia1"), unix.S_IFCHR|0o600, int(unix.Mkdev(195, 7))); err != nil {
		t.Fatal(err)
	}
	parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := parts.GPUs["GPU-a"]; ok || !isDeviceNodeFault(parts.Faults["GPU-a"], "195:7") {
		t.Errorf("GPU-a: got nodes %v, fault %q", parts.GPUs["GPU-a"], parts.Faults["GPU-a"])
	}
	if _, ok := parts.GPUs["GPU-b"]; !ok {
		t.Errorf("GPU-b: got no nodes, fault %q", parts.Faults["GPU-b"])
	}
}

func TestInspectExcludesInvalidAndDuplicateUUIDs(t *testing.T) {
	n := newNode(t)
	for _, uuid := range []string{"", "GPU-\x01", "GPU-a/b", "GPU-\xff", "GPU-ä", "-", "GPU-b"} {
		inv := *inventory
		inv.GPUs = append(slices.Clone(inv.GPUs), gpu.GPU{UUID: uuid, Index: 2, Minor: 2, PCIBusID: "0000:3c:00.0"})
		parts, err := cdi.Inspect(n.root(), n.driver(t), &inv, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := parts.GPUs[uuid]; ok || parts.Faults[uuid].Code != gpu.FaultUnreadable {
			t.Errorf("%q: got nodes %v, fault %q", uuid, parts.GPUs[uuid], parts.Faults[uuid])
		}
		spec, err := cdi.Build(cdi.AgentKind, &inv, parts, []cdi.NameStrategy{cdi.ByUUID})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cdi.AgentFile(t.TempDir(), n.root()).Put(spec); err != nil {
			t.Errorf("%q: %v", uuid, err)
		}
		if !strings.HasPrefix(devicesOf(spec), "GPU-a ") {
			t.Errorf("%q: got devices %s", uuid, devicesOf(spec))
		}
	}
}

func TestInspectReportsModuleNotLoaded(t *testing.T) {
	n := newNode(t)
	driver := n.driver(t)
	n.write(t, "proc/devices", "Character devices:\n195 nvidia\n195 nvidia-modeset\n")
	// The device node stays after the module is unloaded.
	if err := unix.Mknod(n.path("dev/nvidia-uvm"), unix.S_IFCHR|0o600, int(unix.Mkdev(511, 0))); err != nil {
		t.Fatal(err)
	}
	_, err := cdi.Inspect(n.root(), driver, inventory, nil)
	var missing *cdi.NotLoadedError
	if !errors.As(err, &missing) || missing.Module != "nvidia-uvm" {
		t.Errorf("got error %v", err)
	}
}

// withMIG returns the inventory with the first GPU partitioned into two GPU instances, the second with two compute
// instances.
func withMIG() *gpu.Inventory {
	partitioned := *inventory
	partitioned.GPUs = slices.Clone(inventory.GPUs)
	partitioned.GPUs[0].MIG = gpu.MIGEnabled
	partitioned.GPUs[0].MIGDevices = []gpu.MIGDevice{
		{UUID: "MIG-a", Index: 0, Profile: "3g.20gb", GPUInstance: 1},
		{UUID: "MIG-b", Index: 1, Profile: "1c.3g.20gb", GPUInstance: 2, ComputeInstance: 0},
		{UUID: "MIG-c", Index: 2, Profile: "2c.3g.20gb", GPUInstance: 2, ComputeInstance: 1},
	}
	return &partitioned
}

// migMinors numbers GPUs by minor number, not by index.
const migMinors = "config 1\nmonitor 2\n" +
	"gpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\n" +
	"gpu1/gi1/access 147\ngpu1/gi1/ci0/access 148\n" +
	"gpu1/gi2/access 156\ngpu1/gi2/ci0/access 157\ngpu1/gi2/ci1/access 158\n"

func migNode(t *testing.T) node {
	t.Helper()
	n := newNode(t)
	n.write(t, "proc/devices", "Character devices:\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n236 nvidia-caps\n")
	n.write(t, "proc/driver/nvidia-caps/mig-minors", migMinors)
	return n
}

func TestInspectMIGDevices(t *testing.T) {
	n := migNode(t)
	parts, err := cdi.Inspect(n.root(), n.driver(t), withMIG(), nil)
	if err != nil {
		t.Fatal(err)
	}
	parent := cdi.DeviceNode{Path: "/dev/nvidia1", Major: 195, Minor: 1}
	capability := func(minor int64) cdi.DeviceNode {
		return cdi.DeviceNode{Path: fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor), Major: 236, Minor: minor}
	}
	want := map[string][]cdi.DeviceNode{
		"GPU-b": {{Path: "/dev/nvidia0", Major: 195, Minor: 0}},
		"MIG-a": {parent, capability(147), capability(148)},
		"MIG-b": {parent, capability(156), capability(157)},
		"MIG-c": {parent, capability(156), capability(158)},
	}
	if !reflect.DeepEqual(parts.GPUs, want) || len(parts.Faults) != 0 {
		t.Errorf("got GPUs %v, faults %v, want %v", parts.GPUs, parts.Faults, want)
	}
	if want := []cdi.DeviceNode{parent, capability(2)}; !reflect.DeepEqual(parts.Monitor, want) {
		t.Errorf("got %v for monitoring, want %v", parts.Monitor, want)
	}
	spec, err := cdi.Build(cdi.AgentKind, withMIG(), parts, []cdi.NameStrategy{cdi.ByUUID})
	if err != nil {
		t.Fatal(err)
	}
	monitor := spec.Devices[len(spec.Devices)-1]
	var monitored []string
	for _, n := range monitor.ContainerEdits.DeviceNodes {
		monitored = append(monitored, strings.TrimPrefix(n.Path, "/dev/"))
	}
	slices.Sort(monitored)
	wantNodes := "nvidia-caps/nvidia-cap147 nvidia-caps/nvidia-cap148 nvidia-caps/nvidia-cap156 nvidia-caps/nvidia-cap157 " +
		"nvidia-caps/nvidia-cap158 nvidia-caps/nvidia-cap2 nvidia0 nvidia1"
	if got := strings.Join(monitored, " "); monitor.Name != cdi.MonitorDevice || got != wantNodes {
		t.Errorf("device %s has nodes %s, want %s", monitor.Name, got, wantNodes)
	}
}

func TestInspectExcludesIncompleteMIGDevices(t *testing.T) {
	capNode := func(t *testing.T, n node, number uint64) {
		t.Helper()
		n.write(t, "dev/nvidia-caps/none", "")
		if err := unix.Mknod(n.path("dev/nvidia-caps/nvidia-cap147"), unix.S_IFCHR|0o444, int(number)); err != nil {
			t.Fatal(err)
		}
	}
	const caps = "proc/driver/nvidia-caps/mig-minors"
	for _, tc := range []struct {
		name  string
		setup func(t *testing.T, n node)
		want  map[string]string // parts of the fault messages by UUID
	}{
		{"no GPU instance", func(t *testing.T, n node) {
			n.write(t, caps, strings.Replace(migMinors, "gpu1/gi1/access", "gpu1/gi9/access", 1))
		}, map[string]string{"MIG-a": "has no capability gpu1/gi1/access"}},
		{"no compute instance", func(t *testing.T, n node) {
			n.write(t, caps, strings.Replace(migMinors, "gpu1/gi2/ci1/access 158", "", 1))
		}, map[string]string{"MIG-c": "has no capability gpu1/gi2/ci1/access"}},
		{"no capabilities", func(t *testing.T, n node) { n.remove(t, caps) },
			map[string]string{"MIG-a": "mig-minors", "MIG-b": "mig-minors", "MIG-c": "mig-minors"}},
		{"no major number", func(t *testing.T, n node) {
			n.write(t, "proc/devices", "Character devices:\n195 nvidia\n195 nvidiactl\n511 nvidia-uvm\n")
		}, map[string]string{"MIG-a": "nvidia-caps", "MIG-b": "nvidia-caps", "MIG-c": "nvidia-caps"}},
		{"wrong device node", func(t *testing.T, n node) { capNode(t, n, unix.Mkdev(236, 99)) },
			map[string]string{"MIG-a": "nvidia-modprobe -f /proc/driver/nvidia/capabilities/gpu1/mig/gi1/access"}},
		{"correct device node", func(t *testing.T, n node) { capNode(t, n, unix.Mkdev(236, 147)) }, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := migNode(t)
			tc.setup(t, n)
			parts, err := cdi.Inspect(n.root(), n.driver(t), withMIG(), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, uuid := range []string{"GPU-b", "MIG-a", "MIG-b", "MIG-c"} {
				fault, want := parts.Faults[uuid], tc.want[uuid]
				if want == "" && !fault.None() || want != "" && !isDeviceNodeFault(fault, want) {
					t.Errorf("%s: got fault %q, want %q", uuid, fault, want)
				}
				if _, ok := parts.GPUs[uuid]; ok != fault.None() {
					t.Errorf("%s: got nodes %v with fault %q", uuid, parts.GPUs[uuid], fault)
				}
			}
		})
	}
}

func TestInspectExcludesInaccessibleGPUs(t *testing.T) {
	n := newNode(t)
	driver := n.driver(t)
	for name, mode := range map[string]os.FileMode{"dev/nvidia0": 0o666, "dev/nvidia1": 0o600} {
		minor := uint32(name[len(name)-1] - '0')
		if err := errors.Join(unix.Mknod(n.path(name), unix.S_IFCHR, int(unix.Mkdev(195, minor))), os.Chmod(n.path(name), mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Dir(n.dir), 0o755); err != nil { // t.TempDir creates it with mode 0700
		t.Fatal(err)
	}
	asNobody(t, func() {
		parts, err := cdi.Inspect(n.root(), driver, inventory, nil)
		if err != nil {
			t.Error(err)
			return
		}
		if _, ok := parts.GPUs["GPU-a"]; ok || !isDeviceNodeFault(parts.Faults["GPU-a"], "accessing /dev/nvidia1 as user") {
			t.Errorf("GPU-a: got nodes %v, fault %q", parts.GPUs["GPU-a"], parts.Faults["GPU-a"])
		}
		if _, ok := parts.GPUs["GPU-b"]; !ok {
			t.Errorf("GPU-b: got no nodes, fault %q", parts.Faults["GPU-b"])
		}
	})
}

// asNobody runs do as an unprivileged user.
func asNobody(t *testing.T, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Without UnlockOSThread, the thread ends with the goroutine.
		runtime.LockOSThread()
		const nobody, same = 65534, ^uintptr(0)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, nobody, same); errno != 0 {
			t.Error(errno)
			return
		}
		do()
	}()
	<-done
}

// In a sandbox whose /proc/devices is not the host's, the major numbers are those of the device nodes.
func TestInspectInSandbox(t *testing.T) {
	n := newNode(t)
	n.write(t, "proc/devices", "Character devices:\n  1 mem\n")
	for name, number := range map[string]uint64{
		"nvidiactl": unix.Mkdev(195, 255), "nvidia-uvm": unix.Mkdev(300, 0),
		"nvidia0": unix.Mkdev(195, 0), "nvidia1": unix.Mkdev(195, 1),
	} {
		if err := unix.Mknod(n.path("dev/"+name), unix.S_IFCHR|0o600, int(number)); err != nil {
			t.Fatal(err)
		}
	}
	parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, nil)
	if err != nil {
		t.Fatal(err)
	}
	if parts.Control[1].Major != 300 || len(parts.GPUs) != 2 {
		t.Errorf("got parts %+v", parts)
	}
}

// node is the root file system of a node.
type node struct{ dir string }

// newNode creates a node with a minimal driver.
func newNode(t *testing.T) node {
	t.Helper()
	n := node{t.TempDir()}
	n.write(t, "proc/devices", "Character devices:\n  1 mem\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n511 nvidia-uvm\n\nBlock devices:\n511 other\n")
	n.write(t, "usr/bin/nvidia-smi", "#!")
	n.write(t, "dev/null", "")
	for name, content := range map[string]string{
		"etc/OpenCL/vendors/nvidia.icd":                                "libnvidia-opencl.so.1\n",
		"usr/share/glvnd/egl_vendor.d/10_nvidia.json":                  "{}",
		"usr/share/glvnd/egl_vendor.d/50_mesa.json":                    "{}",
		"usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json": "{}",
		"usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json":     "{}",
		"etc/vulkan/icd.d/nvidia_icd.json":                             "{}",
		"etc/vulkan/icd.d/nvidia_icd.i686.json":                        "{}",
		"usr/lib/xorg/modules/drivers/nvidia_drv.so":                   "",
		"sys/bus/pci/devices/0000:18:00.0/drm/card4/dev":               "226:4\n",
		"sys/bus/pci/devices/0000:18:00.0/drm/renderD132/dev":          "226:132\n",
		"sys/bus/pci/devices/0000:18:00.0/drm/controlD68/dev":          "226:68\n",
	} {
		n.write(t, name, content)
	}
	for file, soname := range map[string]string{
		"libcuda.so." + driverVersion:               "libcuda.so.1",
		"libnvidia-ml.so." + driverVersion:          "libnvidia-ml.so.1",
		"libnvidia-gpucomp.so." + driverVersion:     "libnvidia-gpucomp.so." + driverVersion,
		"libnvidia-newcomer.so." + driverVersion:    "libnvidia-newcomer.so.1",
		"libnvidia-nvvm70.so.4":                     "libnvidia-nvvm70.so.4",
		"libGLX_nvidia.so." + driverVersion:         "libGLX_nvidia.so.0",
		"libnvidia-glcore.so." + driverVersion:      "libnvidia-glcore.so." + driverVersion,
		"libnvidia-egl-gbm.so.1.1.2":                "libnvidia-egl-gbm.so.1",
		"libEGL_nvidia.so." + driverVersion:         "libEGL_nvidia.so.0",
		"vdpau/libvdpau_nvidia.so." + driverVersion: "libvdpau_nvidia.so.1",
		"libnvcuvid.so." + driverVersion:            "libnvcuvid.so.1",
		"libunrelated.so.1":                         "libunrelated.so.1",
	} {
		n.library(t, file, soname)
	}
	if err := os.Symlink("libnvidia-ml.so."+driverVersion, n.path(libDir+"libnvidia-ml.so.1")); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n node) path(name string) string { return filepath.Join(n.dir, name) }

func (n node) root() host.Root { return host.NewRoot(n.dir) }

func (n node) driver(t *testing.T) host.DriverRoot {
	t.Helper()
	root, err := host.FindDriver(n.root(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func (n node) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(n.path(name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.path(name), []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (n node) remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(n.path(name)); err != nil {
		t.Fatal(err)
	}
}

// library writes an empty shared library, because Inspect reads only the headers and the SONAME.
func (n node) library(t *testing.T, file, soname string) {
	t.Helper()
	stub, err := stub()
	if err != nil {
		t.Fatal(err)
	}
	name := soname + strings.Repeat("\x00", len(placeholder)-len(soname))
	n.write(t, libDir+file, strings.Replace(stub, placeholder, name, 1))
}

// placeholder is the SONAME of the stub, to be replaced in place.
var placeholder = strings.Repeat("S", 64)

var stub = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "stub")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	object := filepath.Join(dir, "stub.so")
	out, err := exec.Command("cc", "-shared", "-nostdlib", "-Wl,-soname,"+placeholder, "-o", object, "-x", "c", "/dev/null").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("linking a stub: %w\n%s", err, out)
	}
	data, err := os.ReadFile(object)
	return string(data), err
})

// A restarted container must not get a different GPU that now has the device node of the allocated one.
func TestInspectExcludesReplacedGPUs(t *testing.T) {
	node := newNode(t)
	inv := *inventory
	inv.GPUs = append(slices.Clone(inv.GPUs),
		gpu.GPU{UUID: "GPU-c", Minor: 1, PCIBusID: "0000:18:00.0", Fault: gpu.Gone(),
			MIGDevices: []gpu.MIGDevice{{UUID: "MIG-c", Fault: gpu.Gone()}}},
		gpu.GPU{UUID: "GPU-d", Minor: 2, PCIBusID: "0000:3c:00.0", Fault: gpu.Gone()})
	parts, err := cdi.Inspect(node.root(), node.driver(t), &inv, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(parts.GPUs)); !slices.Equal(got, []string{"GPU-a", "GPU-b", "GPU-d"}) {
		t.Errorf("got GPUs %v", got)
	}
}

// isDeviceNodeFault reports whether a fault has the code FaultDeviceNode and a message that contains part.
func isDeviceNodeFault(fault gpu.Fault, part string) bool {
	return fault.Code == gpu.FaultDeviceNode && strings.Contains(fault.Message, part)
}
