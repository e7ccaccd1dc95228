package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
)

// history is the state that the telemetry of a GPU keeps between cycles.
type history struct {
	gpm  gpmSamples
	seen uint64 // timestamp of the latest utilization sample of a process, in µs
}

// readTelemetry reads a GPU's measurements. It omits those that fail, because the health is determined by probes.
func (s session) readTelemetry(g gpu.GPU, dev nvml.Device, h *history) gpu.Telemetry {
	var t gpu.Telemetry
	readUtilization(&t, dev)
	readSensors(&t, dev)
	if memory, ret := dev.GetMemoryInfo(); ret == nvml.SUCCESS {
		t.MemoryUsed = &memory.Used
	}
	if count, ret := dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS {
		t.ECCCorrected = &count
	}
	if count, ret := dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS {
		t.ECCUncorrected = &count
	}
	if reasons, ret := s.clocksEvents(dev); ret == nvml.SUCCESS {
		events := gpu.ClocksEvents(reasons)
		t.ClocksEvents = &events
	}
	readFields(&t, dev, hasNVLinks(g))
	s.readActivity(&t, dev, &h.gpm)
	s.readMIGAndProcesses(&t, g, dev, h)
	return t
}

func readUtilization(t *gpu.Telemetry, dev nvml.Device) {
	if rates, ret := dev.GetUtilizationRates(); ret == nvml.SUCCESS {
		t.Utilization, t.MemoryUtilization = ratio(rates.Gpu), ratio(rates.Memory)
	}
	if percent, _, ret := dev.GetEncoderUtilization(); ret == nvml.SUCCESS {
		t.EncoderUtilization = ratio(percent)
	}
	if percent, _, ret := dev.GetDecoderUtilization(); ret == nvml.SUCCESS {
		t.DecoderUtilization = ratio(percent)
	}
}

func readSensors(t *gpu.Telemetry, dev nvml.Device) {
	if celsius, ret := dev.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
		t.Temperature = scaled(celsius, 1)
	}
	if percent, ret := dev.GetFanSpeed(); ret == nvml.SUCCESS {
		t.FanSpeed = ratio(percent)
	}
	if milliwatts, ret := dev.GetPowerUsage(); ret == nvml.SUCCESS {
		t.Power = scaled(milliwatts, 1e-3)
	}
	if milliwatts, ret := dev.GetEnforcedPowerLimit(); ret == nvml.SUCCESS {
		t.PowerLimit = scaled(milliwatts, 1e-3)
	}
	if megahertz, ret := dev.GetClockInfo(nvml.CLOCK_SM); ret == nvml.SUCCESS {
		t.SMClock = scaled(megahertz, 1e6)
	}
	if megahertz, ret := dev.GetClockInfo(nvml.CLOCK_MEM); ret == nvml.SUCCESS {
		t.MemoryClock = scaled(megahertz, 1e6)
	}
}

// clocksEvents reads the reasons for the clock frequency. Drivers before 535 have the function under an older name.
func (s session) clocksEvents(dev nvml.Device) (uint64, nvml.Return) {
	if s.has("nvmlDeviceGetCurrentClocksEventReasons") {
		return dev.GetCurrentClocksEventReasons()
	}
	return dev.GetCurrentClocksThrottleReasons()
}

// readMIGAndProcesses reads the memory of each MIG device, and the processes of the GPU or of its MIG devices.
func (s session) readMIGAndProcesses(t *gpu.Telemetry, g gpu.GPU, dev nvml.Device, h *history) {
	processes := s.newProcesses()
	if g.MIG != gpu.MIGEnabled {
		processes.read(g.UUID, dev)
		processes.readUtilization(dev, &h.seen)
	}
	for _, m := range g.MIGDevices {
		migDev, ret := s.lib.DeviceGetHandleByUUID(m.UUID)
		if ret != nvml.SUCCESS {
			continue
		}
		if memory, ret := migDev.GetMemoryInfo(); ret == nvml.SUCCESS {
			if t.MIG == nil {
				t.MIG = map[string]gpu.MIGTelemetry{}
			}
			t.MIG[m.UUID] = gpu.MIGTelemetry{MemoryUsed: &memory.Used}
		}
		processes.read(m.UUID, migDev)
	}
	t.Usage = processes.byCgroup(s.node)
}

func hasNVLinks(g gpu.GPU) bool {
	for _, l := range g.Links {
		if l.NVLinks > 0 {
			return true
		}
	}
	return false
}

func ratio(percentage uint32) *float64 {
	ratio := float64(percentage) / percent
	return &ratio
}

func scaled(value uint32, unit float64) *float64 {
	scaled := float64(value) * unit
	return &scaled
}
