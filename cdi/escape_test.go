package cdi_test

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/internal/host"
)

// driverDir is where the driver of the tests below has its root.
const driverDir = "/run/nvidia/driver"

// FuzzNoHostPathLeavesTheDriverRoot puts any links and names into a driver root.
// What a spec mounts is bound by the runtime on the node, as root: a link that
// leads out of the driver's root file system would hand containers any file of
// the node (CVE-2024-0132 was that, in the other direction). A name must not lead
// out of the directories of the container that are meant for the driver's files.
func FuzzNoHostPathLeavesTheDriverRoot(f *testing.F) {
	for _, target := range []string{
		"/etc/secret", "../../../../../../etc/secret", "../../../../../../../../etc/secret.d/..//secret",
		"libcuda.so." + driverVersion, ".", "/", "..", "/proc/self/root/etc/secret", "/run/nvidia/driver/../../../etc/secret",
		"loop", "/usr/lib/loop/..", "libcuda.so.\xff", "libnvidia-nvvm.so." + driverVersion, "/usr//lib/./x86_64-linux-gnu/../../../../etc/secret",
	} {
		f.Add(target, "libnvidia-ptxjitcompiler.so."+driverVersion, target, "..")
		f.Add("/etc", "../../../../etc", target, target)
	}
	f.Fuzz(func(t *testing.T, file, dir, program, name string) {
		n := newDriverContainer(t)
		n.link(file, driverDir+"/usr/lib/x86_64-linux-gnu/libescaped.so."+driverVersion)
		n.link(dir, driverDir+"/usr/share")
		n.link(program, driverDir+"/usr/bin/nvidia-smi")
		n.link(program, driverDir+"/usr/origBin/nvidia-smi")
		if len(name) < 64 {
			n.library(t, "../../.."+driverDir+"/usr/lib/x86_64-linux-gnu/libnamed.so."+driverVersion, name)
		}
		n.link("loop", driverDir+"/usr/lib/x86_64-linux-gnu/loop")
		n.write(t, driverDir+"/etc/OpenCL/vendors/nvidia.icd", file) // names a library
		n.inspect(t)
	})
}

// What is a file at one look is a link at the next.
func TestNoHostPathLeavesTheDriverRootInARace(t *testing.T) {
	n := newDriverContainer(t)
	swapped := []string{driverDir + "/usr/lib/x86_64-linux-gnu/libescaped.so." + driverVersion, driverDir + "/usr/bin", driverDir + "/usr/share"}
	n.library(t, "../../.."+swapped[0], "libescaped.so.1")
	n.write(t, swapped[2]+"/nvidia/nvoptix.bin", "")
	for _, name := range swapped {
		n.link(n.path("etc/secret"), name+".link") // where it would lead without a root
	}
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, name := range swapped {
				err := unix.Renameat2(unix.AT_FDCWD, n.path(name), unix.AT_FDCWD, n.path(name+".link"), unix.RENAME_EXCHANGE)
				if err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	looks := 0
	for range 1000 {
		looks += n.inspect(t)
	}
	close(stop)
	swapping.Wait()
	if looks == 0 {
		t.Error("every look failed: nothing was shown")
	}
}

// newDriverContainer is a node whose driver has a root of its own, and that has
// secrets outside of it under the names that a container asks for.
func newDriverContainer(t *testing.T) node {
	t.Helper()
	n := node{t.TempDir()}
	n.write(t, "proc/devices", "Character devices:\n195 nvidia\n511 nvidia-uvm\n")
	for _, name := range []string{"etc/secret", "etc/nvidia-smi", "etc/OpenCL/vendors/nvidia.icd", "etc/vulkan/icd.d/nvidia_icd.json"} {
		n.library(t, "../../../"+name, "libsecret.so.1")
	}
	for file, soname := range map[string]string{
		"libnvidia-ml.so.1":                    "libnvidia-ml.so.1",
		"libnvidia-ml.so." + driverVersion:     "libnvidia-ml.so.1",
		"libcuda.so." + driverVersion:          "libcuda.so.1",
		"libnvidia-ptxjit.so." + driverVersion: "libnvidia-ptxjit.so.1",
		"libnvidia-nvvm.so." + driverVersion:   "libnvidia-nvvm.so.4",
		"../../bin/nvidia-cuda-mps-server":     "nvidia-cuda-mps-server",
		"../../origBin/x":                      "x",
	} {
		n.library(t, "../../.."+driverDir+"/usr/lib/x86_64-linux-gnu/"+file, soname)
	}
	return n
}

// link leaves out what the file system does not take as a link's target.
func (n node) link(target, name string) {
	_ = errors.Join(os.RemoveAll(n.path(name)), os.Symlink(target, n.path(name)))
}

// inspect fails the test when anything of the node outside of the driver's root
// would reach a container. It returns how many times Inspect found all it needs.
func (n node) inspect(t *testing.T) (looks int) {
	t.Helper()
	driver, err := host.FindDriver(n.root(), driverDir, "")
	if err != nil {
		return 0
	}
	for _, features := range []cdi.Features{{cdi.Compute, cdi.Utility}, {cdi.Utility}} {
		parts, err := cdi.Inspect(n.root(), driver, inventory, features)
		if err != nil {
			continue
		}
		looks++
		if stray := strayMounts(t, parts); len(stray) > 0 {
			t.Errorf("%q are mounted", stray)
		}
		paths := map[string]bool{}
		for _, l := range parts.Libraries {
			paths[l.NodePath] = true
			if l.SONAME == "libsecret.so.1" {
				t.Errorf("%s was read, which is outside of the root", l.NodePath)
			}
		}
		for _, b := range parts.Binds {
			paths[b.NodePath] = true
		}
		for p := range paths {
			if path.Clean(p) != p || !strings.HasPrefix(p, driverDir+"/") {
				t.Errorf("host path %q is not below %s", p, driverDir)
			}
		}
	}
	return looks
}

// When nothing changes under it, a host path leads through no link at all, so
// that whoever follows it ends where it says.
func TestHostPathsAreWithoutLinks(t *testing.T) {
	n := newDriverContainer(t)
	n.link("../lib/x86_64-linux-gnu/libnvidia-nvvm.so."+driverVersion, driverDir+"/usr/bin/nvidia-smi")
	driver, err := host.FindDriver(n.root(), driverDir, "")
	if err != nil {
		t.Fatal(err)
	}
	parts, err := cdi.Inspect(n.root(), driver, inventory, cdi.DefaultFeatures())
	if err != nil {
		t.Fatal(err)
	}
	if len(parts.Binds) != 2 || len(parts.Libraries) != 4 {
		t.Errorf("found %+v", parts)
	}
	for _, b := range parts.Binds {
		resolved, err := filepath.EvalSymlinks(n.path(b.NodePath))
		if err != nil || resolved != n.path(b.NodePath) {
			t.Errorf("%s leads to %s, %v", b.NodePath, resolved, err)
		}
	}
}
