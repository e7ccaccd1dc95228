package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
)

// readTelemetry reads a GPU's measurements. It omits those that fail, because the health is determined by probes.
func (s session) readTelemetry(dev nvml.Device) gpu.Telemetry {
	var t gpu.Telemetry
	if rates, ret := dev.GetUtilizationRates(); ret == nvml.SUCCESS {
		t.Utilization = scaled(rates.Gpu, 0.01)
	}
	if memory, ret := dev.GetMemoryInfo(); ret == nvml.SUCCESS {
		t.MemoryUsed = &memory.Used
	}
	if celsius, ret := dev.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
		t.Temperature = scaled(celsius, 1)
	}
	if milliwatts, ret := dev.GetPowerUsage(); ret == nvml.SUCCESS {
		t.Power = scaled(milliwatts, 1e-3)
	}
	if megahertz, ret := dev.GetClockInfo(nvml.CLOCK_SM); ret == nvml.SUCCESS {
		t.SMClock = scaled(megahertz, 1e6)
	}
	if megahertz, ret := dev.GetClockInfo(nvml.CLOCK_MEM); ret == nvml.SUCCESS {
		t.MemoryClock = scaled(megahertz, 1e6)
	}
	if count, ret := dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS {
		t.ECCCorrected = &count
	}
	if count, ret := dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS {
		t.ECCUncorrected = &count
	}
	return t
}

func scaled(value uint32, unit float64) *float64 {
	scaled := float64(value) * unit
	return &scaled
}
