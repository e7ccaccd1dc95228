package simdriver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// pciLink is the path of a PCI device in the list of all devices.
func pciLink(g GPU) string { return filepath.Join("sys/bus/pci/devices", sysfsBus(g.BusID)) }

// pciDirectory is the path of a PCI device in the device tree: below the root complex of its Bridge, the root port of
// its Root, and an outer and an inner switch. GPUs with the same Switch share the inner switch. Without NUMA nodes, as
// in a desktop machine, there are no switches.
func pciDirectory(g GPU) string {
	bus := (0x80*g.PCIe.Node + 0x10*g.PCIe.Bridge) & 0xF0
	port := func(bus, device int) string { return fmt.Sprintf("0000:%02x:%02x.0", bus, device&0x1F) }
	elements := []string{"sys/devices", fmt.Sprintf("pci0000:%02x", bus), port(bus, g.PCIe.Root+1)}
	if g.NUMANode >= 0 {
		inner := bus + 3 + g.PCIe.Root%8
		elements = append(elements,
			port(bus+1, g.PCIe.Root), port(bus+2, g.PCIe.Switch),
			port(inner, g.PCIe.Switch), port(bus+11, g.Minor))
	}
	return filepath.Join(append(elements, sysfsBus(g.BusID))...)
}

// plug creates the directory of a PCI device and the symlink to it. Where the device tree is a real sysfs, in which no
// directories can be created, a directory replaces the symlink, and the device has no path to a root complex.
func (k kernel) plug(g GPU) error {
	link, directory := k.path(pciLink(g)), pciDirectory(g)
	if onFS(k.path("sys/devices"), unix.SYSFS_MAGIC) {
		return mkdirs(link)
	}
	if err := errors.Join(mkdirs(k.path(directory)), mkdirs(filepath.Dir(link))); err != nil {
		return err
	}
	target, err := filepath.Rel("sys/bus/pci/devices", directory)
	if err != nil {
		return err
	}
	if err := os.Symlink(target, link); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// unplug removes a PCI device, given the path of its symlink. The path may lead through /proc/PID/root, which must not
// be resolved.
func unplug(link string) error {
	directory := link
	if target, err := os.Readlink(link); err == nil {
		directory = filepath.Join(filepath.Dir(link), target)
	}
	return errors.Join(os.RemoveAll(directory), os.RemoveAll(link))
}
