// Package platform installs the files and device nodes of WSL2, of Jetsons and of the GPU Operator's driver container
// below a root, with a simulated NVML where the platform has one. It is independent of gpucdi. Creating device nodes
// requires root.
package platform

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// Platform is a node whose GPUs have no device nodes of the NVIDIA kernel driver. Paths are relative to its root.
type Platform struct {
	Name    string
	IDs     []string // of the GPUs
	Nodes   []string // device nodes, of which the first is required
	Libcuda string
	Labels  []string // some of the node's labels, as lines of a feature file
	Absent  []string // prefixes of labels that must not be set

	profile *simdriver.Profile // of NVML; nil: no NVML
	library string             // NVML
	faults  []simdriver.Fault  // of NVML functions that the platform lacks or implements differently
	files   map[string]string
}

// notSupported is NVML_ERROR_NOT_SUPPORTED.
const notSupported = 3

// unsupported returns faults that make NVML functions return notSupported.
func unsupported(functions ...string) (faults []simdriver.Fault) {
	for _, f := range functions {
		faults = append(faults, simdriver.Fault{Func: f, Return: notSupported})
	}
	return faults
}

// All returns the platforms.
func All() []Platform { return []Platform{WSL2(), Orin(), Xavier()} }

// WSL2 returns a WSL2 node on a Windows host with two GPUs.
func WSL2() Platform {
	windows := simdriver.GTX1060x2()
	return Platform{
		Name: "WSL2", profile: &windows, library: "usr/lib/wsl/lib/libnvidia-ml.so.1",
		faults:  unsupported("nvmlDeviceGetMinorNumber", "nvmlDeviceRegisterEvents", "nvmlDeviceGetTopologyCommonAncestor"),
		Nodes:   []string{"dev/dxg"},
		Libcuda: "usr/lib/wsl/lib/libcuda.so.1",
		files:   map[string]string{"usr/lib/wsl/drivers/nv_dispi.inf_amd64_0123456789abcdef/nvcubins.bin": ""},
		IDs:     []string{windows.GPUs[0].UUID, windows.GPUs[1].UUID},
		Labels: []string{"nvidia.com/gpu.product=NVIDIA-GeForce-GTX-1060-6GB\n", "nvidia.com/gpu.count=2\n",
			"nvidia.com/gpu.memory=6144\n", "nvidia.com/cuda.driver-version.full=580.95.05\n"},
	}
}

// Orin returns a Jetson with JetPack 6, whose NVML supports few functions and reports UUIDs without a prefix.
func Orin() Platform {
	orin := simdriver.GTX1060x2()
	orin.Version, orin.GPUs = "540.4.0", orin.GPUs[:1]
	orin.GPUs[0].Name = "Orin (nvgpu)"
	const uuid = "54d0709b-558d-5a59-9c65-0c5fc14a21a4"
	libcuda := simdriver.LibraryDir + "/nvidia/libcuda.so.1.1"
	return Platform{
		Name: "Jetson with NVML", profile: &orin, library: simdriver.LibraryDir + "/nvidia/libnvidia-ml.so.1",
		faults: append(unsupported("nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo", "nvmlDeviceGetMemoryInfo",
			"nvmlDeviceRegisterEvents", "nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetCudaComputeCapability",
			"nvmlDeviceGetArchitecture"), simdriver.Fault{GPU: orin.GPUs[0].UUID, Func: "nvmlDeviceGetUUID", Answers: true, Answer: uuid}),
		Nodes:   []string{"dev/nvgpu/igpu0/ctrl", "dev/nvmap"},
		Libcuda: libcuda,
		files: jetson(libcuda, "# R36 (release), REVISION: 4.0, GCID: 37537400\n", "nvidia,tegra234",
			"NVIDIA Jetson AGX Orin Developer Kit"),
		IDs: []string{"GPU-" + uuid},
		Labels: []string{"nvidia.com/gpu.product=Orin-nvgpu\n", "nvidia.com/gpu.family=ampere\n",
			"nvidia.com/gpu.compute.minor=7\n", "nvidia.com/gpu.memory=15452\n"},
		Absent: []string{"nvidia.com/cuda."},
	}
}

// Xavier returns a Jetson with JetPack 5, which has no NVML.
func Xavier() Platform {
	libcuda := simdriver.LibraryDir + "/tegra/libcuda.so.1.1"
	return Platform{
		Name:    "Jetson without NVML",
		Nodes:   []string{"dev/nvhost-ctrl-gpu", "dev/nvmap"},
		Libcuda: libcuda,
		files: jetson(libcuda, "# R35 (release), REVISION: 4.1, GCID: 33958178\n", "nvidia,tegra194",
			"NVIDIA Jetson AGX Xavier Developer Kit"),
		IDs: []string{"GPU-124de610-27a2-8536-8200-a4fd7f2fbaf2"},
		Labels: []string{"nvidia.com/gpu.product=Xavier\n", "nvidia.com/gpu.machine=NVIDIA-Jetson-AGX-Xavier-Developer-Kit\n",
			"nvidia.com/gpu.family=volta\n", "nvidia.com/gpu.memory=15452\n"},
		Absent: []string{"nvidia.com/cuda."},
	}
}

// jetson returns the files that Jetson Linux installs and the kernel exposes.
func jetson(libcuda, release, soc, model string) map[string]string {
	const lists, tree = "etc/nvidia-container-runtime/host-files-for-container.d/", "sys/firmware/devicetree/base/"
	return map[string]string{
		"etc/nv_tegra_release": release,
		"proc/meminfo":         "MemTotal:       15823412 kB\n",
		tree + "compatible":    "nvidia,p3767\x00" + soc + "\x00",
		tree + "model":         model + "\x00",
		tree + "serial-number": "1421620034151\x00",
		lists + "drivers.csv":  "lib, /" + libcuda + "\n",
		lists + "devices.csv":  "dev, /dev/nvmap\ndev, /dev/nvhost-ctrl-gpu\ndev, /dev/nvgpu/igpu0/ctrl\ndev, /dev/nvhost-nvdla0\n",
	}
}

// Install installs the platform below root, and the simulated driver of its GPUs below driverDir. The node cannot see
// driverDir, as a WSL2 node cannot see the Windows driver. root and driverDir must be on the same file system. Install
// returns the driver, or nil if the platform has no NVML.
func (p Platform) Install(root, driverDir string) (*simdriver.Driver, error) {
	profile := simdriver.GTX1060x2() // for its libcuda
	if p.profile != nil {
		profile = *p.profile
	}
	driver, err := simdriver.Install(driverDir, profile)
	if err != nil {
		return nil, err
	}
	libcuda := filepath.Join(driverDir, simdriver.LibraryDir, "libcuda.so."+profile.Version)
	if err := link(libcuda, filepath.Join(root, p.Libcuda)); err != nil {
		return nil, err
	}
	for name, content := range p.files {
		if err := write(filepath.Join(root, name), content); err != nil {
			return nil, err
		}
	}
	for _, name := range p.Nodes {
		if err := MakeNode(filepath.Join(root, name)); err != nil {
			return nil, err
		}
	}
	if p.profile == nil {
		return nil, nil
	}
	for _, f := range p.faults {
		if err := driver.InjectFault(f); err != nil {
			return nil, err
		}
	}
	// A hard link, because the state of the simulated driver is in the inode of its library.
	return driver, link(driver.LibraryPath(), filepath.Join(root, p.library))
}

// Operator installs a driver below root as the GPU Operator does: the driver container has the driver and, in its own
// /dev, the device nodes, which the node's /dev lacks; the validator has written its status files. It returns no
// driver, because its files in /proc and /sys have moved, so that it can no longer be changed.
func Operator(root string, profile simdriver.Profile) error {
	container := filepath.Join(root, DriverContainer)
	if err := os.MkdirAll(container, 0o755); err != nil {
		return err
	}
	if _, err := simdriver.Install(container, profile); err != nil {
		return err
	}
	for _, dir := range []string{"proc", "sys"} { // the container and the node share the kernel
		if err := os.Rename(filepath.Join(container, dir), filepath.Join(root, dir)); err != nil {
			return err
		}
	}
	ready := "IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/run/nvidia/driver\nDRIVER_ROOT_CTR_PATH=/driver-root\n" +
		"NVIDIA_DEV_ROOT=/run/nvidia/driver\nDEV_ROOT_CTR_PATH=/driver-root\n"
	var errs []error
	for name, content := range map[string]string{"driver-ready": ready, "toolkit-ready": "", "cuda-ready": "", ".driver-ctr-ready": ""} {
		errs = append(errs, write(filepath.Join(root, Validations, name), content))
	}
	return errors.Join(errs...)
}

// Directories of the GPU Operator.
const (
	DriverContainer = "run/nvidia/driver"      // root file system of the driver container
	Validations     = "run/nvidia/validations" // status files of the validator
)

// MakeNode creates a device node, and its directory, with the device number of /dev/null.
func MakeNode(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
}

func write(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o644)
}

func link(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.Link(from, to)
}
