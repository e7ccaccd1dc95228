package nvml

import (
	"fmt"
	"math"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// maxMIGDevices is more than any GPU can be partitioned into, which are 7 up to now.
const maxMIGDevices = 64

// readMIG reads the GPU's MIG mode and its MIG devices.
func (s session) readMIG(g *gpu.GPU, dev nvml.Device) error {
	g.MIG, g.MIGDevices = gpu.MIGUnsupported, nil
	if !s.has("nvmlDeviceGetMigMode") {
		return nil
	}
	current, _, ret := dev.GetMigMode()
	known, err := answered("MIG mode", ret)
	if !known || err != nil {
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
		return fmt.Errorf("counting the MIG devices: there is room for %d, and a GPU has at most %d; update the driver", count, maxMIGDevices)
	}
	for index := range count {
		part, ret := dev.GetMigDeviceHandleByIndex(index)
		var uuid string
		if ret == nvml.SUCCESS {
			uuid, ret = part.GetUUID()
		}
		switch {
		case ret == nvml.ERROR_NOT_FOUND, ret == nvml.ERROR_INVALID_ARGUMENT:
			continue // there is room for more, or it has just been destroyed
		case ret != nvml.SUCCESS:
			return fmt.Errorf("opening MIG device %d: %w", index, ret)
		case strings.Contains(uuid, "/"):
			return fmt.Errorf("MIG device %d is called %s, which no CDI spec can hold: install driver 470 or newer", index, host.Printable(uuid, textLimit))
		}
		m := gpu.MIGDevice{UUID: uuid, Index: index}
		if err := readMIGDevice(&m, part, dev, g.MemoryBytes); err != nil {
			m.Fault = unread(err)
		}
		g.MIGDevices = append(g.MIGDevices, m)
	}
	return nil
}

// readMIGDevice asks one MIG device what it is. total is its GPU's memory.
func readMIGDevice(m *gpu.MIGDevice, part, parent nvml.Device, total uint64) error {
	var ret nvml.Return
	if m.GPUInstance, ret = part.GetGpuInstanceId(); ret != nvml.SUCCESS {
		return fmt.Errorf("reading the GPU instance: %w", ret)
	}
	if m.ComputeInstance, ret = part.GetComputeInstanceId(); ret != nvml.SUCCESS {
		return fmt.Errorf("reading the compute instance: %w", ret)
	}
	size, ret := part.GetAttributes()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("reading the size: %w", ret)
	}
	name, ret := part.GetName()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("reading the profile: %w", ret)
	}
	m.MemoryBytes, m.Profile = size.MemorySizeMB<<20, profile(name, size, total)
	m.Placement = placement(parent, m.GPUInstance)
	m.Multiprocessors = int(size.MultiprocessorCount)
	m.GPUSlices, m.ComputeSlices = int(size.GpuInstanceSliceCount), int(size.ComputeInstanceSliceCount)
	m.Engines = gpu.Engines{
		Copy: int(size.SharedCopyEngineCount), Decoder: int(size.SharedDecoderCount), Encoder: int(size.SharedEncoderCount),
		JPEG: int(size.SharedJpegCount), OFA: int(size.SharedOfaCount),
	}
	return nil
}

// placement asks the GPU where an instance lies. Only people want to know, and
// not every user may.
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

// profile is what the driver calls the size of a MIG device: the end of its
// name, "NVIDIA A100-SXM4-40GB MIG 1g.5gb". Where the name does not have it,
// it is worked out from what the device has of a GPU with total bytes, as
// NVIDIA's tools do: memory is rounded up to eighths of the GPU's.
func profile(name string, size nvml.DeviceAttributes, total uint64) string {
	if _, named, found := strings.Cut(name, " MIG "); found && named != "" {
		return named
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

// concerned are the MIG devices of g that an event of these instances is about,
// by UUID; none when it is about the whole GPU, or about instances that are not
// known: then every one may be hit.
func concerned(g gpu.GPU, gpuInstance, computeInstance uint32) []string {
	var uuids []string
	for _, m := range g.MIGDevices {
		if uint32(m.GPUInstance) == gpuInstance &&
			(computeInstance == noInstance || uint32(m.ComputeInstance) == computeInstance) {
			uuids = append(uuids, m.UUID)
		}
	}
	return uuids
}

// noInstance is what NVML writes for the instance of an event that concerns
// more than one.
const noInstance = math.MaxUint32
