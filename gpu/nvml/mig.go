package nvml

import (
	"fmt"
	"math"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// maxMIGDevices bounds the number of MIG devices per GPU that a driver can report. Current GPUs support 7.
const maxMIGDevices = 64

// readMIG reads the GPU's MIG mode and its MIG devices.
func (s session) readMIG(g *gpu.GPU, dev nvml.Device) error {
	g.MIG, g.MIGDevices = gpu.MIGUnsupported, nil
	if !s.has("nvmlDeviceGetMigMode") {
		return nil
	}
	current, _, ret := dev.GetMigMode()
	ok, err := supported("MIG mode", ret)
	if !ok || err != nil {
		return err
	}
	if current != nvml.DEVICE_MIG_ENABLE {
		g.MIG = gpu.MIGDisabled
		return nil
	}
	g.MIG = gpu.MIGEnabled
	count, ret := dev.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("counting the MIG devices: %w", ret)
	}
	if count > maxMIGDevices {
		return fmt.Errorf("counting the MIG devices: the driver reported a maximum of %d, more than the limit of %d; update the driver", count, maxMIGDevices)
	}
	for index := range count {
		migDev, ret := dev.GetMigDeviceHandleByIndex(index)
		var uuid string
		if ret == nvml.SUCCESS {
			uuid, ret = migDev.GetUUID()
		}
		switch {
		case ret == nvml.ERROR_NOT_FOUND, ret == nvml.ERROR_INVALID_ARGUMENT:
			continue // the slot is free, or the device was just destroyed
		case ret != nvml.SUCCESS:
			return fmt.Errorf("opening MIG device %d: %w", index, ret)
		case strings.Contains(uuid, "/"):
			return fmt.Errorf("reading MIG device %d: UUID %s is not a valid CDI device name; install driver 470 or newer", index, host.Printable(uuid, textLimit))
		}
		m := gpu.MIGDevice{UUID: uuid, Index: index}
		if err := readMIGDevice(&m, migDev, dev, g.MemoryBytes); err != nil {
			m.Fault, m.Partial = readFault(err), true
		}
		g.MIGDevices = append(g.MIGDevices, m)
	}
	return nil
}

// readMIGDevice reads the attributes of a MIG device. total is the memory of its GPU in bytes.
func readMIGDevice(m *gpu.MIGDevice, migDev, parent nvml.Device, total uint64) error {
	var ret nvml.Return
	if m.GPUInstance, ret = migDev.GetGpuInstanceId(); ret != nvml.SUCCESS {
		return fmt.Errorf("reading the GPU instance: %w", ret)
	}
	if m.ComputeInstance, ret = migDev.GetComputeInstanceId(); ret != nvml.SUCCESS {
		return fmt.Errorf("reading the compute instance: %w", ret)
	}
	attributes, ret := migDev.GetAttributes()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("reading the attributes: %w", ret)
	}
	name, ret := migDev.GetName()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("reading the profile: %w", ret)
	}
	m.MemoryBytes, m.Profile = attributes.MemorySizeMB<<20, profile(name, attributes, total)
	m.Placement = placement(parent, m.GPUInstance)
	m.Multiprocessors = int(attributes.MultiprocessorCount)
	m.GPUSlices, m.ComputeSlices = int(attributes.GpuInstanceSliceCount), int(attributes.ComputeInstanceSliceCount)
	m.Engines = gpu.Engines{
		Copy: int(attributes.SharedCopyEngineCount), Decoder: int(attributes.SharedDecoderCount), Encoder: int(attributes.SharedEncoderCount),
		JPEG: int(attributes.SharedJpegCount), OFA: int(attributes.SharedOfaCount),
	}
	return nil
}

// placement reads the placement of a GPU instance. It is informational and the call is privileged, so errors are
// ignored.
func placement(parent nvml.Device, gpuInstance int) gpu.Placement {
	instance, ret := parent.GetGpuInstanceById(gpuInstance)
	if ret != nvml.SUCCESS {
		return gpu.Placement{}
	}
	info, ret := instance.GetInfo()
	if ret != nvml.SUCCESS {
		return gpu.Placement{}
	}
	return gpu.Placement{Start: int(info.Placement.Start), Size: int(info.Placement.Size)}
}

// profile returns the profile of a MIG device, which is the end of its name: "NVIDIA A100-SXM4-40GB MIG 1g.5gb". If the
// name lacks it, profile computes it as NVIDIA's tools do, with the memory rounded up to eighths of total, the memory
// of the GPU in bytes. If total is 0 as well, it returns "".
func profile(name string, size nvml.DeviceAttributes, total uint64) string {
	if _, named, found := strings.Cut(name, " MIG "); found && named != "" {
		return named
	}
	if total == 0 {
		return ""
	}
	const eighths, gib = 8, 1 << 30
	share := math.Ceil(eighths*float64(size.MemorySizeMB<<20)/float64(total)) / eighths
	memory := math.Round(share * math.Ceil(float64(total)/gib))
	whole := fmt.Sprintf("%dg.%.0fgb", size.GpuInstanceSliceCount, memory)
	if size.ComputeInstanceSliceCount == size.GpuInstanceSliceCount {
		return whole
	}
	return fmt.Sprintf("%dc.%s", size.ComputeInstanceSliceCount, whole)
}

// affectedMIGDevices returns the UUIDs of the MIG devices of g that an event about these instances affects. It returns
// none if the event affects the whole GPU or the instances are unknown.
func affectedMIGDevices(g gpu.GPU, gpuInstance, computeInstance uint32) []string {
	var uuids []string
	for _, m := range g.MIGDevices {
		if uint32(m.GPUInstance) == gpuInstance &&
			(computeInstance == noInstance || uint32(m.ComputeInstance) == computeInstance) {
			uuids = append(uuids, m.UUID)
		}
	}
	return uuids
}

// noInstance is the instance ID in NVML events that are not specific to an instance.
const noInstance = math.MaxUint32
