package cdi_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/internal/host"
)

// device creates a character device.
func (n node) device(t *testing.T, name string, major, minor uint32) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(n.path(name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(n.path(name), unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor))); err != nil {
		t.Fatal(err)
	}
}

// devicesOf returns the name and device nodes of each device of a spec.
func devicesOf(spec *specs.Spec) string {
	var all []string
	for _, d := range spec.Devices {
		line := d.Name
		for _, n := range d.ContainerEdits.DeviceNodes {
			line += " " + n.Path
		}
		all = append(all, line)
	}
	return strings.Join(all, "; ")
}

func mountsOf(spec *specs.Spec) string {
	var all []string
	for _, m := range spec.ContainerEdits.Mounts {
		all = append(all, m.HostPath+" "+m.ContainerPath)
	}
	return strings.Join(all, "; ")
}

func TestClasses(t *testing.T) {
	const cuda = "/" + libDir + "tegra/libcuda.so.1.1"
	for class, tc := range map[cdi.Class]struct {
		setup           func(t *testing.T, n node)
		devices, mounts string
		gpus            bool
	}{
		cdi.GDS: {
			setup: func(t *testing.T, n node) {
				n.device(t, "dev/nvidia-fs0", 237, 0)
				n.device(t, "dev/nvidia-fs1", 237, 1)
				n.write(t, "run/udev/data/x", "")
				n.write(t, "etc/cufile.json", "{}")
			},
			devices: "all /dev/nvidia-fs0 /dev/nvidia-fs1",
			mounts:  "/etc/cufile.json /etc/cufile.json; /run/udev /run/udev",
		},
		cdi.RDMA: {
			setup: func(t *testing.T, n node) {
				n.device(t, "dev/infiniband/uverbs0", 231, 192)
				n.device(t, "dev/infiniband/rdma_cm", 10, 58)
				n.device(t, "dev/infiniband/issm0", 231, 64)
			},
			devices: "all /dev/infiniband/uverbs0 /dev/infiniband/rdma_cm",
		},
		cdi.GDRCopy: {
			setup:   func(t *testing.T, n node) { n.device(t, "dev/gdrdrv", 238, 0) },
			devices: "all /dev/gdrdrv",
		},
		cdi.IMEXChannel: {
			setup: func(t *testing.T, n node) {
				n.device(t, "dev/nvidia-caps-imex-channels/channel0", 234, 0)
				n.device(t, "dev/nvidia-caps-imex-channels/channel7", 234, 7)
			},
			devices: "0 /dev/nvidia-caps-imex-channels/channel0; 7 /dev/nvidia-caps-imex-channels/channel7; " +
				"all /dev/nvidia-caps-imex-channels/channel0 /dev/nvidia-caps-imex-channels/channel7",
		},
		"nvswitch": {
			setup: func(t *testing.T, n node) {
				n.device(t, "dev/nvidia-nvswitchctl", 240, 255)
				n.device(t, "dev/nvidia-nvswitch0", 240, 0)
			},
			devices: "all /dev/nvidia-nvswitchctl /dev/nvidia-nvswitch0",
		},
		"wsl": {
			setup: func(t *testing.T, n node) {
				n.device(t, "dev/dxg", 10, 127)
				n.write(t, "usr/lib/wsl/drivers/nv_dispi.inf_amd64/libcuda.so.1.1", "")
				n.write(t, "usr/lib/wsl/lib/libcuda.so.1", "")
				n.write(t, "usr/lib/wsl/lib/nvidia-smi", "")
			},
			devices: "all /dev/dxg",
			mounts: "/usr/lib/wsl/lib/nvidia-smi /usr/bin/nvidia-smi; /usr/lib/wsl/drivers /usr/lib/wsl/drivers; /usr/lib/wsl/lib /usr/lib/wsl/lib; " +
				"/usr/lib/wsl/lib/libcuda.so.1 /usr/lib/x86_64-linux-gnu/libcuda.so.1; /usr/lib/wsl/lib/libcuda.so.1 /usr/lib64/libcuda.so.1",
			gpus: true,
		},
		"tegra": {
			setup: func(t *testing.T, n node) {
				n.device(t, "dev/nvhost-ctrl-gpu", 240, 1)
				n.device(t, "dev/nvmap", 10, 100)
				n.library(t, "tegra/libcuda.so.1.1", "libcuda.so.1")
				n.write(t, libDir+"tegra/libscript.so", "INPUT(libcuda.so.1)\n")
				n.write(t, "opt/gadget/x", "")
				n.write(t, "etc/nv_tegra_release", "# R36\n")
				if err := os.Symlink("libcuda.so.1.1", n.path(libDir+"tegra/libcuda.so")); err != nil {
					t.Fatal(err)
				}
				n.write(t, "etc/nvidia-container-runtime/host-files-for-container.d/devices.csv", "dev, /dev/nvmap\ndev, /dev/nvhost-*\ndev, /dev/absent\n")
				n.write(t, "etc/nvidia-container-runtime/host-files-for-container.d/drivers.csv",
					"# libraries\n\nlib, /"+libDir+"tegra/libcuda.so.*\nsym, /"+libDir+"tegra/libcuda.so\nlib, /"+libDir+"tegra/libscript.so\ndir, /opt/gadget\nlib, /opt/absent.so\n")
			},
			devices: "0 /dev/nvhost-ctrl-gpu /dev/nvmap; all /dev/nvhost-ctrl-gpu /dev/nvmap",
			mounts: "/etc/nv_tegra_release /etc/nv_tegra_release; /opt/gadget /opt/gadget; " +
				strings.Join([]string{
					cuda + " /" + libDir + "libcuda.so", cuda + " /" + libDir + "libcuda.so.1",
					cuda + " /" + libDir + "tegra/libcuda.so", cuda + " /" + libDir + "tegra/libcuda.so.1.1",
					"/" + libDir + "tegra/libscript.so /" + libDir + "tegra/libscript.so",
					cuda + " /usr/lib64/libcuda.so", cuda + " /usr/lib64/libcuda.so.1",
				}, "; "),
			gpus: true,
		},
	} {
		t.Run(string(class), func(t *testing.T) {
			n := node{t.TempDir()}
			_, err := cdi.BuildClass("nvidia.com/"+string(class), class, n.root())
			var absent *cdi.AbsentError
			if !errors.As(err, &absent) || !strings.Contains(err.Error(), "/dev/") {
				t.Errorf("absent: got error %v, want *AbsentError with the device node", err)
			}
			tc.setup(t, n)
			spec, err := cdi.BuildClass("nvidia.com/"+string(class), class, n.root())
			if err != nil {
				t.Fatal(err)
			}
			if devicesOf(spec) != tc.devices || mountsOf(spec) != tc.mounts {
				t.Errorf("got devices\n%s\nwant\n%s\ngot mounts\n%s\nwant\n%s",
					devicesOf(spec), tc.devices, mountsOf(spec), tc.mounts)
			}
			if tc.gpus {
				checkEnvironment(t, spec)
				if got := valuesOf(spec, "TRITON_LIBCUDA_PATH"); !slices.Equal(got, []string{"/usr/lib64"}) {
					t.Errorf("got TRITON_LIBCUDA_PATH %q", got)
				}
			} else if len(spec.ContainerEdits.Env) > 0 {
				t.Errorf("unexpected environment %v", spec.ContainerEdits.Env)
			}
			if _, err := cdi.ClassFile(class, t.TempDir(), n.root()).Put(spec); err != nil {
				t.Errorf("Put: %v", err)
			}
		})
	}
	if _, err := cdi.BuildClass("nvidia.com/x", "x", host.NewRoot(t.TempDir())); err == nil {
		t.Error("built an unknown class")
	}
}

// udev creates and removes device nodes at any time.
func TestBuildClassWhileNodesChange(t *testing.T) {
	n := node{t.TempDir()}
	n.device(t, "dev/nvidia-fs0", 237, 0)
	stop := make(chan struct{})
	var udev sync.WaitGroup
	udev.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for minor := range 4 {
				path := n.path(fmt.Sprintf("dev/nvidia-fs%d", minor+1))
				if err := errors.Join(unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(237, uint32(minor)))), os.Remove(path)); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for range 2000 {
		spec, err := cdi.BuildClass("nvidia.com/gds", cdi.GDS, n.root())
		if err != nil {
			t.Error(err)
			break
		}
		if !strings.Contains(devicesOf(spec), "/dev/nvidia-fs0") {
			t.Errorf("got devices %s", devicesOf(spec))
		}
	}
	close(stop)
	udev.Wait()
}

// Files that match a pattern but are not device nodes are not part of the class.
func TestBuildClassSkipsOtherFiles(t *testing.T) {
	n := node{t.TempDir()}
	n.write(t, "dev/nvidia-fs.lock", "")
	_, err := cdi.BuildClass("nvidia.com/gds", cdi.GDS, n.root())
	if absent := (*cdi.AbsentError)(nil); !errors.As(err, &absent) || !strings.Contains(err.Error(), "no character device /dev/nvidia-fs*") {
		t.Errorf("without device nodes: got error %v", err)
	}
	n.device(t, "dev/nvidia-fs0", 237, 0)
	spec, err := cdi.BuildClass("nvidia.com/gds", cdi.GDS, n.root())
	if err != nil {
		t.Fatal(err)
	}
	if got := devicesOf(spec); got != "all /dev/nvidia-fs0" {
		t.Errorf("got devices %s", got)
	}
}

func TestAuxiliaryDeviceName(t *testing.T) {
	for class, want := range map[cdi.Class]string{
		cdi.GDS: "gpucdi.dev/gds=all", cdi.RDMA: "gpucdi.dev/rdma=all",
		cdi.GDRCopy: "gpucdi.dev/gdrcopy=all", cdi.IMEXChannel: "gpucdi.dev/imex-channel=0",
	} {
		if got := cdi.AuxiliaryDeviceName(class); got != want {
			t.Errorf("%s: got %s, want %s", class, got, want)
		}
	}
}
