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

// driverDir is the driver root of newNodeWithDriverRoot.
const driverDir = "/run/nvidia/driver"

// FuzzHostPathsStayInDriverRoot creates arbitrary symlinks and names in a driver root. Runtimes mount host paths as
// root, so a symlink out of the driver root would expose any file of the node to containers (in CVE-2024-0132, the
// symlink was in an image). Names must not escape the container directories into which driver files are mounted.
func FuzzHostPathsStayInDriverRoot(f *testing.F) {
	for _, target := range []string{
		"/etc/secret", "../../../../../../etc/secret", "../../../../../../../../etc/secret.d/..//secret",
		"libcuda.so." + driverVersion, ".", "/", "..", "/proc/self/root/etc/secret", "/run/nvidia/driver/../../../etc/secret",
		"loop", "/usr/lib/loop/..", "libcuda.so.\xff", "libnvidia-nvvm.so." + driverVersion, "/usr//lib/./x86_64-linux-gnu/../../../../etc/secret",
	} {
		f.Add(target, "libnvidia-ptxjitcompiler.so."+driverVersion, target, "..")
		f.Add("/etc", "../../../../etc", target, target)
	}
	f.Fuzz(func(t *testing.T, file, dir, program, name string) {
		n := newNodeWithDriverRoot(t)
		n.link(file, driverDir+"/usr/lib/x86_64-linux-gnu/libescaped.so."+driverVersion)
		n.link(dir, driverDir+"/usr/share")
		n.link(program, driverDir+"/usr/bin/nvidia-smi")
		n.link(program, driverDir+"/usr/origBin/nvidia-smi")
		if len(name) < 64 {
			n.library(t, "../../.."+driverDir+"/usr/lib/x86_64-linux-gnu/libnamed.so."+driverVersion, name)
		}
		n.link("loop", driverDir+"/usr/lib/x86_64-linux-gnu/loop")
		n.write(t, driverDir+"/etc/OpenCL/vendors/nvidia.icd", file) // references a library
		n.inspect(t)
	})
}

// Files are replaced by symlinks, and back, while they are inspected.
func TestHostPathsStayInDriverRootDuringReplacement(t *testing.T) {
	n := newNodeWithDriverRoot(t)
	swapped := []string{driverDir + "/usr/lib/x86_64-linux-gnu/libescaped.so." + driverVersion, driverDir + "/usr/bin", driverDir + "/usr/share"}
	n.library(t, "../../.."+swapped[0], "libescaped.so.1")
	n.write(t, swapped[2]+"/nvidia/nvoptix.bin", "")
	for _, name := range swapped {
		n.link(n.path("etc/secret"), name+".link") // escapes the root if resolved on the host
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
	inspected := 0
	for range 1000 {
		inspected += n.inspect(t)
	}
	close(stop)
	swapping.Wait()
	if inspected == 0 {
		t.Error("every Inspect failed, nothing was tested")
	}
}

// newNodeWithDriverRoot creates a node with a driver root at driverDir, and secrets outside of it at paths that driver
// roots also contain.
func newNodeWithDriverRoot(t *testing.T) node {
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

// link replaces a file or directory with a symlink. It only removes it if the file system rejects the target.
func (n node) link(target, name string) {
	_ = errors.Join(os.RemoveAll(n.path(name)), os.Symlink(target, n.path(name)))
}

// inspect fails the test if containers would get files from outside the driver root. It returns the number of calls of
// Inspect that succeeded.
func (n node) inspect(t *testing.T) (succeeded int) {
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
		succeeded++
		if stray := strayMounts(t, parts); len(stray) > 0 {
			t.Errorf("unexpected mounts %q", stray)
		}
		paths := map[string]bool{}
		for _, l := range parts.Libraries {
			paths[l.HostPath] = true
			if l.SONAME == "libsecret.so.1" {
				t.Errorf("%s was read from outside the driver root", l.HostPath)
			}
		}
		for _, b := range parts.Binds {
			paths[b.HostPath] = true
		}
		for p := range paths {
			if path.Clean(p) != p || !strings.HasPrefix(p, driverDir+"/") {
				t.Errorf("host path %q is not below %s", p, driverDir)
			}
		}
	}
	return succeeded
}

// Host paths contain no symlinks, so that runtimes resolve them to the same files.
func TestHostPathsContainNoSymlinks(t *testing.T) {
	n := newNodeWithDriverRoot(t)
	n.link("../lib/x86_64-linux-gnu/libnvidia-nvvm.so."+driverVersion, driverDir+"/usr/bin/nvidia-smi")
	driver, err := host.FindDriver(n.root(), driverDir, "")
	if err != nil {
		t.Fatal(err)
	}
	parts, err := cdi.Inspect(n.root(), driver, inventory, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(parts.Binds) != 3 || len(parts.Libraries) != 4 {
		t.Errorf("got parts %+v", parts)
	}
	for _, b := range parts.Binds {
		resolved, err := filepath.EvalSymlinks(n.path(b.HostPath))
		if err != nil || resolved != n.path(b.HostPath) {
			t.Errorf("%s resolves to %s, %v", b.HostPath, resolved, err)
		}
	}
}
