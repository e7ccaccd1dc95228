package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
)

// The numbers of PCI: NVIDIA's, and the class of what drives displays or
// computes like one.
const (
	vendorNVIDIA = "0x10de"
	classDisplay = "0x03"
)

func (e *examination) hardware(context.Context) []Finding {
	const link, bus = "hardware", "/sys/bus/pci/devices"
	devices, err := e.Root.ReadDir(bus)
	if err != nil {
		return warn(link, fmt.Sprintf("the PCI bus cannot be looked at: %v", err), "in a sandbox this is as it should be; else mount /sys below --host-root")
	}
	found := 0
	for _, d := range devices {
		vendor, _ := e.Root.ReadFile(path.Join(bus, d.Name(), "vendor"))
		class, _ := e.Root.ReadFile(path.Join(bus, d.Name(), "class"))
		if strings.TrimSpace(string(vendor)) == vendorNVIDIA && strings.HasPrefix(string(class), classDisplay) {
			found++
		}
	}
	if found == 0 {
		return warn(link, "no NVIDIA GPU is on the PCI bus", "look at its seat and its power; a virtual machine must be given it")
	}
	return pass(link, fmt.Sprintf("%d NVIDIA GPUs are on the PCI bus", found))
}

func (e *examination) module(context.Context) []Finding {
	const link = "kernel module"
	version, err := cdi.KernelModuleVersion(e.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return fail(link, "it is not loaded: "+err.Error(), "run modprobe nvidia; dmesg says why it fails")
	}
	if err != nil {
		return fail(link, err.Error(), "")
	}
	return pass(link, version+" is loaded")
}

func (e *examination) files(context.Context) []Finding {
	const link = "driver files"
	driver, err := host.FindDriver(e.Root, e.DriverRoot, e.Library)
	if err != nil {
		return fail(link, err.Error(), "")
	}
	e.driver = &driver
	_, version, _ := strings.Cut(path.Base(driver.NVML), ".so.")
	// Some sandboxes have a library without a version.
	if module, err := cdi.KernelModuleVersion(e.Root); err == nil && strings.Contains(version, ".") && module != version {
		return fail(link, fmt.Sprintf("%s is of another version than the kernel module %s", driver.NodePath(driver.NVML), module),
			"reload the kernel module, or reboot the node: it is older than the files where they were upgraded")
	}
	return pass(link, driver.NodePath(driver.NVML))
}

// answers lets the driver's library tell of the GPUs, in a process that can be
// lost.
func (e *examination) answers(ctx context.Context) []Finding {
	const link = "NVML"
	if e.driver == nil {
		return skip(link, "there is no library to ask")
	}
	reading := driver.Read(ctx, driver.Config{Node: e.Root, DriverRoot: e.DriverRoot, Library: e.Library, Worker: e.Worker})
	if reading.Err != nil {
		return fail(link, reading.Err.Error(), "")
	}
	e.reading = &reading
	for uuid, p := range reading.Probes {
		e.health.Probe(uuid, p, time.Now())
	}
	is := reading.Inventory.Driver
	findings := pass(link, fmt.Sprintf("driver %s, CUDA %s, %d GPUs", is.Version, is.CUDA, len(reading.Inventory.GPUs)))
	if missing := e.unlisted(reading.Inventory); len(missing) > 0 {
		findings = append(findings, warn(link, fmt.Sprintf("it does not list %s, which the kernel's driver has", strings.Join(missing, ", ")),
			"look for RmInitAdapter in the kernel log; where its node below /dev is missing, run nvidia-modprobe on the node")...)
	}
	return findings
}

// unlisted are the PCI addresses of the GPUs that the kernel's driver has and NVML keeps silent
// about, as it does of one that could not be initialised or whose node it cannot open.
func (e *examination) unlisted(told *gpu.Inventory) (addresses []string) {
	entries, err := e.Root.ReadDir("/proc/driver/nvidia/gpus")
	if err != nil {
		return nil // in a sandbox
	}
	for _, entry := range entries {
		if !slices.ContainsFunc(told.GPUs, func(g gpu.GPU) bool { return g.PCIBusID == entry.Name() }) {
			addresses = append(addresses, entry.Name())
		}
	}
	// Those that NVML counts, and that do not tell where they are, have findings of their own.
	nowhere := len(told.Unreadable)
	for _, g := range told.GPUs {
		if g.PCIBusID == "" {
			nowhere++
		}
	}
	if len(addresses) <= nowhere {
		return nil
	}
	return addresses
}

func (e *examination) gpus(context.Context) []Finding {
	const link = "GPUs"
	if e.reading == nil {
		return skip(link, "nobody tells of them")
	}
	var findings []Finding
	for _, u := range e.reading.Inventory.Unreadable {
		findings = append(findings, fail(link, fmt.Sprintf("GPU %d: %s", u.Index, u.Fault.Message), u.Fault.Remedy)...)
	}
	for _, g := range e.reading.Inventory.GPUs {
		if fault := cmp.Or(g.Fault, e.health.Fault(g.UUID)); !fault.None() {
			findings = append(findings, fail(link, named(g)+fault.Message, fault.Remedy)...)
		}
	}
	switch {
	case len(findings) > 0:
		return findings
	case len(e.reading.Inventory.GPUs) == 0:
		return warn(link, "the driver has none", "")
	}
	return pass(link, "each answers, and has nothing against itself")
}

// parts looks for what containers are given.
func (e *examination) parts(context.Context) []Finding {
	const link = "CDI parts"
	if e.reading == nil {
		return skip(link, "nobody tells of the GPUs")
	}
	parts, err := cdi.Inspect(e.Root, *e.driver, e.reading.Inventory, e.settings.CDI.Features)
	if err != nil {
		return fail(link, gpu.OneLine(err), "")
	}
	var findings []Finding
	for _, g := range e.reading.Inventory.GPUs {
		if fault := parts.Faults[g.UUID]; !fault.None() {
			findings = append(findings, fail(link, named(g)+fault.Message, fault.Remedy)...)
		}
	}
	if len(findings) > 0 {
		return findings
	}
	return pass(link, fmt.Sprintf("%d libraries and the device nodes are there", len(parts.Libraries)))
}

func named(g gpu.GPU) string { return fmt.Sprintf("GPU %d (%s): ", g.Index, g.UUID) }
