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

// PCI IDs. The class is a prefix: VGA and 3D controllers are subclasses.
const (
	vendorNVIDIA = "0x10de"
	classDisplay = "0x03"
)

// platform returns the platform of the GPUs; empty without a driver. If it is not empty, the checks of the PCI bus and
// of the kernel module of PCI GPUs do not apply.
func (e *examination) platform() gpu.Platform {
	driver, err := host.FindDriver(e.Root, e.DriverRoot, e.Library)
	if err != nil {
		return ""
	}
	return gpu.Platform(driver.Platform)
}

func (e *examination) hardware(context.Context) []Finding {
	const check, bus = "hardware", "/sys/bus/pci/devices"
	if p := e.platform(); p != "" {
		return skip(check, fmt.Sprintf("platform %s: PCI GPUs are not required", p))
	}
	devices, err := e.Root.ReadDir(bus)
	if err != nil {
		return warn(check, fmt.Sprintf("reading the PCI bus: %v", err), "mount /sys below --host-root; in a sandbox such as gVisor this is expected")
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
		return warn(check, "no NVIDIA GPU is on the PCI bus", "check the slot and the power supply; for a virtual machine, pass the GPU through")
	}
	if found == 1 {
		return pass(check, "1 NVIDIA GPU is on the PCI bus")
	}
	return pass(check, fmt.Sprintf("%d NVIDIA GPUs are on the PCI bus", found))
}

func (e *examination) module(context.Context) []Finding {
	const check = "kernel module"
	if p := e.platform(); p != "" {
		return skip(check, fmt.Sprintf("platform %s: the kernel module of PCI GPUs is not required", p))
	}
	version, err := cdi.KernelModuleVersion(e.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return fail(check, "not loaded: "+err.Error(), "run modprobe nvidia; if it fails, see dmesg")
	}
	if err != nil {
		return fail(check, err.Error(), "")
	}
	return pass(check, "version "+version+" is loaded")
}

func (e *examination) files(context.Context) []Finding {
	const check = "driver files"
	driver, err := host.FindDriver(e.Root, e.DriverRoot, e.Library)
	if err != nil {
		return fail(check, err.Error(), "")
	}
	e.driver = &driver
	if driver.NVML == "" {
		return pass(check, driver.NodePath(driver.LibraryDir)+", without NVML")
	}
	_, version, _ := strings.Cut(path.Base(driver.NVML), ".so.")
	// In some sandboxes the library is named libnvidia-ml.so.1, without the driver version.
	if module, err := cdi.KernelModuleVersion(e.Root); err == nil && strings.Contains(version, ".") && module != version {
		return fail(check, fmt.Sprintf("%s does not match the version of the kernel module, %s", driver.NodePath(driver.NVML), module),
			"reload the kernel module or reboot the node; after a driver upgrade the old module stays loaded")
	}
	return pass(check, driver.NodePath(driver.NVML))
}

// nvml reads the inventory through the driver worker.
func (e *examination) nvml(ctx context.Context) []Finding {
	const check = "NVML"
	if e.driver == nil {
		return skip(check, "requires libnvidia-ml.so.1")
	}
	snapshot := driver.Read(ctx, driver.Config{Node: e.Root, DriverRoot: e.DriverRoot, Library: e.Library, Worker: e.Worker})
	if snapshot.Err != nil {
		return fail(check, snapshot.Err.Error(), "")
	}
	e.snapshot = &snapshot
	e.health.Quiet = e.settings.Health.QuietPeriod
	for uuid, p := range snapshot.Probes {
		e.health.Probe(uuid, p, time.Now())
	}
	version := snapshot.Inventory.Driver
	if e.driver.NVML == "" {
		return skip(check, fmt.Sprintf("Jetson Linux %s has no NVML", version.Version))
	}
	findings := pass(check, fmt.Sprintf("driver %s, CUDA %s, %d GPUs", version.Version, version.CUDA, len(snapshot.Inventory.GPUs)))
	if missing := e.unlisted(snapshot.Inventory); len(missing) > 0 {
		findings = append(findings, warn(check, fmt.Sprintf("NVML does not list %s, which the kernel driver lists", strings.Join(missing, ", ")),
			"search the kernel log for RmInitAdapter; if the device node of the GPU in /dev is missing, run nvidia-modprobe on the node")...)
	}
	return findings
}

// unlisted returns the PCI addresses of GPUs that the kernel driver lists and NVML does not. NVML omits GPUs
// that failed to initialize or whose device node it cannot open.
func (e *examination) unlisted(inventory *gpu.Inventory) (addresses []string) {
	entries, err := e.Root.ReadDir("/proc/driver/nvidia/gpus")
	if err != nil {
		return nil // not available in sandboxes
	}
	for _, entry := range entries {
		if !slices.ContainsFunc(inventory.GPUs, func(g gpu.GPU) bool { return g.PCIBusID == entry.Name() }) {
			addresses = append(addresses, entry.Name())
		}
	}
	// GPUs that NVML lists without a PCI address cannot be matched with addresses. Other findings report them.
	withoutAddress := len(inventory.Unreadable)
	for _, g := range inventory.GPUs {
		if g.PCIBusID == "" {
			withoutAddress++
		}
	}
	if len(addresses) <= withoutAddress {
		return nil
	}
	return addresses
}

func (e *examination) gpus(context.Context) []Finding {
	const check = "GPUs"
	if e.snapshot == nil {
		return skip(check, "requires NVML")
	}
	var findings []Finding
	for _, u := range e.snapshot.Inventory.Unreadable {
		findings = append(findings, fail(check, fmt.Sprintf("GPU %d: %s", u.Index, u.Fault.Message), u.Fault.Remedy)...)
	}
	findings = append(findings, e.faults(check, func(uuid string, known gpu.Fault) gpu.Fault { return cmp.Or(known, e.health.Fault(uuid)) })...)
	switch {
	case len(findings) > 0:
		return findings
	case len(e.snapshot.Inventory.GPUs) == 0:
		return warn(check, "NVML lists no GPUs", "")
	}
	return pass(check, "all respond and have no faults")
}

// memoryLimits checks whether the GPU memory of pods can be limited. It never fails, since only rules with
// limits: memory or share: memory depend on it.
func (e *examination) memoryLimits(context.Context) []Finding {
	const check = "memory limits"
	if e.snapshot == nil {
		return skip(check, "requires NVML")
	}
	inventory := e.snapshot.Inventory
	unknown := func(g gpu.GPU) bool { return g.MemoryLimits == "" }
	switch reasons := gpu.MemoryLimitReasons(inventory.GPUs); {
	case inventory.Platform != "":
		return skip(check, fmt.Sprintf("platform %s: not possible", inventory.Platform))
	case len(reasons) > 0:
		return skip(check, "cannot be set: "+strings.Join(reasons, "; "))
	case len(inventory.GPUs) == 0 || slices.ContainsFunc(inventory.GPUs, unknown):
		return skip(check, "requires that all GPUs can be read")
	}
	return pass(check, "can be set for pods on all GPUs")
}

// isolation reports the weakest isolation of the GPUs and MIG devices that the config shares.
func (e *examination) isolation(context.Context) []Finding {
	const check = "isolation"
	if e.snapshot == nil {
		return skip(check, "requires NVML")
	}
	weakest, shared := e.settings.Policy().WeakestIsolation(e.snapshot.Inventory)
	if !shared {
		return skip(check, "the config shares no GPU")
	}
	return pass(check, "weakest isolation of shared devices: "+weakest.String())
}

// parts checks the sources of the CDI container edits: driver files and device nodes.
func (e *examination) parts(context.Context) []Finding {
	const check = "CDI edits"
	if e.snapshot == nil {
		return skip(check, "requires NVML")
	}
	parts, err := cdi.Inspect(e.Root, *e.driver, e.snapshot.Inventory, e.settings.CDI.Features)
	if err != nil {
		return fail(check, gpu.OneLine(err), "")
	}
	e.inspected = parts
	if findings := e.faults(check, func(uuid string, _ gpu.Fault) gpu.Fault { return parts.Faults[uuid] }); len(findings) > 0 {
		return findings
	}
	if parts.Shared { // features do not apply
		return pass(check, "driver files and device nodes found")
	}
	return pass(check, fmt.Sprintf("%d libraries and all device nodes found, for %s", len(parts.Libraries), parts.Features))
}

// faults returns a finding for each GPU and MIG device for which faultOf returns a fault. known is the fault in the
// inventory. The MIG devices of a GPU with a fault are omitted.
func (e *examination) faults(check string, faultOf func(uuid string, known gpu.Fault) gpu.Fault) (findings []Finding) {
	report := func(name, uuid string, fault gpu.Fault) {
		if !fault.None() {
			findings = append(findings, fail(check, fmt.Sprintf("%s (%s): %s", name, uuid, fault.Message), fault.Remedy)...)
		}
	}
	for _, g := range e.snapshot.Inventory.GPUs {
		own := faultOf(g.UUID, g.Fault)
		report(fmt.Sprintf("GPU %d", g.Index), g.UUID, own)
		for _, m := range g.MIGDevices {
			if own.None() {
				report(fmt.Sprintf("MIG device %d:%d", g.Index, m.Index), m.UUID, faultOf(m.UUID, m.Fault))
			}
		}
	}
	return findings
}
