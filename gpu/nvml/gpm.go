package nvml

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
)

// gpmSamples are the activity counters of a GPU in the previous cycle, and the buffer for the next sample.
type gpmSamples struct {
	previous, next nvml.GpmSample // nil if not sampled or not allocated yet
}

// gpmMetrics are the metrics that are computed from two samples. A value divided by per is in the unit of
// gpu.Telemetry: a fraction, or bytes per second.
var gpmMetrics = []struct {
	id  nvml.GpmMetricId
	per float64
	of  func(*gpu.Telemetry) **float64
}{
	{nvml.GPM_METRIC_SM_UTIL, percent, func(t *gpu.Telemetry) **float64 { return &t.Activity.SM }},
	{nvml.GPM_METRIC_SM_OCCUPANCY, percent, func(t *gpu.Telemetry) **float64 { return &t.Activity.Occupancy }},
	{nvml.GPM_METRIC_ANY_TENSOR_UTIL, percent, func(t *gpu.Telemetry) **float64 { return &t.Activity.Tensor }},
	{nvml.GPM_METRIC_DRAM_BW_UTIL, percent, func(t *gpu.Telemetry) **float64 { return &t.Activity.MemoryBandwidth }},
	{nvml.GPM_METRIC_PCIE_TX_PER_SEC, perMebibyte, func(t *gpu.Telemetry) **float64 { return &t.PCIe.TransmitRate }},
	{nvml.GPM_METRIC_PCIE_RX_PER_SEC, perMebibyte, func(t *gpu.Telemetry) **float64 { return &t.PCIe.ReceiveRate }},
	{nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, perMebibyte, func(t *gpu.Telemetry) **float64 { return &t.NVLink.TransmitRate }},
	{nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, perMebibyte, func(t *gpu.Telemetry) **float64 { return &t.NVLink.ReceiveRate }},
}

const (
	percent     = 100.0
	perMebibyte = 1.0 / (1 << 20) // a value in MiB divided by it is in bytes
)

// readActivity reads the activity since the previous cycle, which Hopper and later GPUs count in hardware. Unlike a
// profiler it does not slow down the GPU. It sets nothing in the first cycle, or if NVML rejects samples of the GPU, as
// in MIG mode.
func (s session) readActivity(t *gpu.Telemetry, dev nvml.Device, samples *gpmSamples) {
	if !s.has("nvmlGpmQueryDeviceSupport") {
		return
	}
	if support, ret := dev.GpmQueryDeviceSupport(); ret != nvml.SUCCESS || support.IsSupportedDevice == 0 {
		return
	}
	if samples.next == nil {
		sample, ret := s.lib.GpmSampleAlloc()
		if ret != nvml.SUCCESS {
			return
		}
		samples.next = sample
	}
	if samples.next.Get(dev) != nvml.SUCCESS {
		return
	}
	if samples.previous != nil {
		s.setActivity(t, samples)
	}
	samples.previous, samples.next = samples.next, samples.previous
}

func (s session) setActivity(t *gpu.Telemetry, samples *gpmSamples) {
	get := nvml.GpmMetricsGetType{NumMetrics: uint32(len(gpmMetrics)), Sample1: samples.previous, Sample2: samples.next}
	for i, m := range gpmMetrics {
		get.Metrics[i].MetricId = uint32(m.id)
	}
	if s.lib.GpmMetricsGet(&get) != nvml.SUCCESS {
		return
	}
	for i, m := range gpmMetrics {
		if got := get.Metrics[i]; nvml.Return(got.NvmlReturn) == nvml.SUCCESS && got.Value >= 0 && got.Value <= math.MaxInt64 { // neither NaN nor infinity
			value := got.Value / m.per
			*m.of(t) = &value
		}
	}
}

func (samples *gpmSamples) free() {
	for _, sample := range []nvml.GpmSample{samples.previous, samples.next} {
		if sample != nil {
			_ = sample.Free()
		}
	}
}
