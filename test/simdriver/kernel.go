package simdriver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// kernel is the kernel module's files below a root: proc/, sys/ and dev/.
type kernel struct{ tree }

// show creates the files of a state in proc, sys and dev. hide removes stale ones
// later, so that the library is updated in between.
func (k kernel) show(s *State) error {
	if s.Unloaded {
		return nil
	}
	m, err := k.showDevices()
	if err != nil {
		return err
	}
	if err := k.showProc(s); err != nil {
		return err
	}
	if err := k.showSys(s, m); err != nil {
		return err
	}
	return k.makeNodes(s, m)
}

// hide removes the files of the driver that do not belong to a state.
func (k kernel) hide(s *State) error {
	if s.Unloaded {
		s = &State{Unloaded: true}
		if err := k.hideDriver(); err != nil {
			return err
		}
	}
	return errors.Join(
		removeOthers(k.path("dev"), "nvidia[0-9]*", nodeNames(s)),
		removeOthers(k.path("dev/dri"), "*[0-9]", drmNames(s)),
		removeOthers(k.path("dev/nvidia-caps"), "nvidia-cap[0-9]*", capNames(s)),
		removeOthers(k.path("proc/driver/nvidia/gpus"), "*", busNames(s)),
		removeOthers(k.path("proc/driver/nvidia/capabilities"), "gpu[0-9]*", capGPUs(s)),
		k.hideInstances(s),
		k.hidePCI(s),
	)
}

func (k kernel) hideDriver() error {
	for _, path := range []string{
		"proc/driver/nvidia", "proc/driver/nvidia-caps",
		"dev/nvidiactl", "dev/nvidia-modeset", "dev/nvidia-uvm", "dev/nvidia-uvm-tools", "dev/nvidia-caps",
	} {
		if err := os.RemoveAll(k.path(path)); err != nil {
			return err
		}
	}
	if !onFS(k.path("sys/module"), unix.SYSFS_MAGIC) {
		if err := os.RemoveAll(k.path("sys/module/nvidia")); err != nil {
			return err
		}
		if err := os.RemoveAll(k.path("sys/module/nvidia_uvm")); err != nil {
			return err
		}
	}
	// The module also loses the time slices, which nvidia-smi keeps in files.
	return errors.Join(removeOthers(k.path("dev"), ".timeslice-*", nil), k.hideDevices())
}

func (k kernel) showProc(s *State) error {
	if onFS(k.path("proc/driver"), unix.PROC_SUPER_MAGIC) {
		return fmt.Errorf("%s is a real procfs, in which no driver can be simulated; mount a tmpfs on it and a regular file on proc/devices", k.path("proc/driver"))
	}
	files := map[string]string{
		"proc/driver/nvidia/version":                  fmt.Sprintf("NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  Tue Sep 23 10:11:16 UTC 2025\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n", s.Version),
		"proc/driver/nvidia/params":                   "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n",
		"proc/driver/nvidia/capabilities/mig/config":  capability(capsConfig, 0o400),
		"proc/driver/nvidia/capabilities/mig/monitor": capability(capsMonitor, 0o444),
		"proc/driver/nvidia-caps/mig-minors":          migMinors(),
		"proc/driver/nvidia-caps/sys-minors":          "fabric-imex-mgmt 4323\n",
	}
	for _, g := range s.GPUs {
		files[filepath.Join("proc/driver/nvidia/gpus", sysfsBus(g.BusID), "information")] = information(s, g)
		for _, m := range g.MIG {
			gi := fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig/gi%d", g.Minor, m.GPUInstance)
			files[gi+"/access"] = capability(giMinor(g.Minor, m.GPUInstance), 0o444)
			files[fmt.Sprintf("%s/ci%d/access", gi, m.CI)] = capability(ciMinor(g.Minor, m.GPUInstance, m.CI), 0o444)
		}
	}
	return k.write(files)
}

func information(s *State, g GPU) string {
	return fmt.Sprintf("Model: \t\t %s\nIRQ:   \t\t %d\nGPU UUID: \t %s\nVideo BIOS: \t 96.00.74.00.1a\nBus Type: \t PCIe\n"+
		"DMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Firmware: \t %s\nGPU Excluded:\t No\n",
		g.Name, 120+g.Minor, g.UUID, sysfsBus(g.BusID), g.Minor, s.Version)
}

func capability(minor, mode int) string {
	return fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: %d\nDeviceFileModify: 1\n", minor, mode)
}

// showSys writes the PCI devices and the modules, except below a real sysfs, in
// which no files can be created.
func (k kernel) showSys(s *State, m majors) error {
	files := map[string]string{}
	if !onFS(k.path("sys/module"), unix.SYSFS_MAGIC) {
		files["sys/module/nvidia/version"] = s.Version + "\n"
		files["sys/module/nvidia/initstate"] = "live\n"
		files["sys/module/nvidia_uvm/initstate"] = "live\n"
	}
	if !onFS(k.path("sys/bus/pci/devices"), unix.SYSFS_MAGIC) {
		for _, g := range s.GPUs {
			if err := k.plug(g); err != nil {
				return err
			}
			device := pciLink(g)
			files[filepath.Join(device, "drm", card(g), "dev")] = fmt.Sprintf("%d:%d\n", m.drm, g.Minor)
			files[filepath.Join(device, "drm", render(g), "dev")] = fmt.Sprintf("%d:%d\n", m.drm, 128+g.Minor)
			for name, value := range pciFiles(g) {
				files[filepath.Join(device, name)] = value + "\n"
			}
			files[filepath.Join(device, "config")] = pciConfig(g)
			if err := k.bind(g); err != nil {
				return err
			}
		}
	}
	return k.write(files)
}

// bind creates the symlink from a PCI device to its driver.
func (k kernel) bind(g GPU) error {
	if err := os.Symlink("../../drivers/nvidia", k.path(pciLink(g), "driver")); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func pciFiles(g GPU) map[string]string {
	class, cpus := "0x030200", "0-15"
	if g.MIGMode == NotSupported && g.Serial == "" {
		class = "0x030000" // a card with display outputs
	}
	if g.NUMANode >= 0 {
		cpus = fmt.Sprintf("%d-%d", 56*g.NUMANode, 56*g.NUMANode+55)
	}
	return map[string]string{
		"vendor":        fmt.Sprintf("0x%04x", g.DeviceID&0xFFFF),
		"device":        fmt.Sprintf("0x%04x", g.DeviceID>>16),
		"class":         class,
		"numa_node":     fmt.Sprint(g.NUMANode),
		"local_cpulist": cpus,
	}
}

// pciConfig returns the PCI configuration space with NVIDIA's vendor-specific
// capability. On a virtual GPU it contains "VF" and a 22-byte record about the
// driver of the hypervisor.
func pciConfig(g GPU) string {
	config := make([]byte, 4096)
	copy(config, []byte{0xde, 0x10, byte(g.DeviceID >> 16), byte(g.DeviceID >> 24)})
	config[0x06], config[0x34] = 0x10, 0xc8 // capability list: status bit and pointer
	copy(config[0xc8:], "\x09\x00\x14\x01")
	if g.HostDriver != [2]string{} {
		copy(config[0xc8:], "\x09\x00\x1bVF\x00\x16")
		copy(config[0xcf:], g.HostDriver[0])
		copy(config[0xd9:], g.HostDriver[1])
	}
	return string(config)
}

// write writes files by path. It skips unchanged files: most state changes affect none.
func (k kernel) write(files map[string]string) error {
	for path, content := range files {
		if b, err := os.ReadFile(k.path(path)); err == nil && string(b) == content {
			continue
		}
		if err := replace(k.path(path), []byte(content), 0o444); err != nil {
			return err
		}
	}
	return nil
}

func (k kernel) hidePCI(s *State) error {
	if onFS(k.path("sys/bus/pci/devices"), unix.SYSFS_MAGIC) {
		return nil
	}
	ours := busNames(s)
	found, err := filepath.Glob(k.path("sys/bus/pci/devices/*/vendor"))
	if err != nil {
		return err
	}
	for _, path := range found {
		vendor, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(vendor)) != "0x10de" {
			continue
		}
		// PCI devices outlive the kernel module; remove only the devices of removed GPUs.
		device := filepath.Dir(path)
		if ours[filepath.Base(device)] {
			continue
		}
		if err := k.unbind(device); err != nil {
			return err
		}
		if s.Unloaded {
			err = os.RemoveAll(filepath.Join(device, "drm"))
		} else {
			err = unplug(device)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unbind removes the symlink from a PCI device to its driver. It moves the symlink aside if it can, so that a later
// symlink has another inode number, by which programs detect a rescan. In sysfs and tmpfs a new symlink always has
// another number; other file systems may reuse the number of a removed file.
func (k kernel) unbind(device string) error {
	link := filepath.Join(device, "driver")
	err := os.Rename(link, k.path(fmt.Sprintf("sys/bus/pci/unbound-%d", time.Now().UnixNano())))
	if errors.Is(err, unix.EXDEV) {
		err = os.Remove(link)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (k kernel) hideInstances(s *State) error {
	for _, g := range s.GPUs {
		names := map[string]bool{}
		for _, m := range g.MIG {
			names[fmt.Sprintf("gi%d", m.GPUInstance)] = true
		}
		dir := k.path(fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig", g.Minor))
		if err := removeOthers(dir, "gi[0-9]*", names); err != nil {
			return err
		}
	}
	return nil
}

func busNames(s *State) map[string]bool {
	names := map[string]bool{}
	for _, g := range s.GPUs {
		names[sysfsBus(g.BusID)] = true
	}
	return names
}

func capGPUs(s *State) map[string]bool {
	names := map[string]bool{}
	for _, g := range s.GPUs {
		names[fmt.Sprintf("gpu%d", g.Minor)] = len(g.MIG) > 0
	}
	return names
}

// removeOthers deletes the files in dir that match pattern and are not in names.
func removeOthers(dir, pattern string, names map[string]bool) error {
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		return err
	}
	for _, path := range found {
		if !names[filepath.Base(path)] {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// onFS reports whether path, or its nearest existing parent, is on a file system
// with this magic number.
func onFS(path string, magic int64) bool {
	var st unix.Statfs_t
	for unix.Statfs(path, &st) == unix.ENOENT && path != "/" {
		path = filepath.Dir(path)
	}
	return st.Type == magic
}
