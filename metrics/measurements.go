package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/status"
)

// measurement is a metric of a GPU whose value is nil if it is not supported or could not be read.
type measurement struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	labels []string // values of the labels after gpu
	value  func(gpu.Telemetry) *float64
}

// counts is a counter with a series for each key of a map.
type counts struct {
	desc   *prometheus.Desc
	unit   float64 // factor that converts the map's values to the metric's unit
	values func(gpu.Telemetry) map[string]uint64
}

var (
	clocks       = describe("gpucdi_gpu_clock_hertz", "Clock frequency of a GPU: sm or memory.", "gpu", "clock")
	eccErrors    = describe("gpucdi_gpu_ecc_errors_total", "ECC memory errors of a GPU since the driver was loaded or the GPU was reset: corrected or uncorrected.", "gpu", "kind")
	clocksEvents = describe("gpucdi_gpu_clocks_event", "1 while a reason determines the clock frequency of a GPU, else 0. Reasons other than idle, applications_clocks and display_clock are throttling.", "gpu", "reason")
	recovery     = describe("gpucdi_gpu_recovery_action", "1 for the action that the driver requires to recover a GPU: none, reset, reboot, drain_p2p, drain_and_reset, imex_domain, bus_reset, system_reboot or other.", "gpu", "action")
	pcieBytes    = describe("gpucdi_gpu_pcie_bytes_total", "PCIe traffic of a GPU: transmitted or received.", "gpu", "direction")
	pcieRate     = describe("gpucdi_gpu_pcie_bytes_per_second", "PCIe traffic of a GPU in the latest probe interval: transmitted or received.", "gpu", "direction")
	nvlinkBytes  = describe("gpucdi_gpu_nvlink_bytes_total", "Traffic of all NVLinks of a GPU, without protocol overhead: transmitted or received.", "gpu", "direction")
	nvlinkRate   = describe("gpucdi_gpu_nvlink_bytes_per_second", "Traffic of all NVLinks of a GPU in the latest probe interval: transmitted or received.", "gpu", "direction")

	migInfo        = describe("gpucdi_mig_device_info", "Properties of a MIG device. The value is always 1.", "gpu", "device", "profile")
	migMemoryBytes = describe("gpucdi_mig_device_memory_bytes", "Total memory of a MIG device, which it may share with others of its GPU instance.", "gpu", "device")
	migMemoryUsed  = describe("gpucdi_mig_device_memory_used_bytes", "Used memory of a MIG device.", "gpu", "device")

	containerMemory = describe("gpucdi_container_gpu_memory_used_bytes", "GPU memory used by the processes of a container.",
		"gpu", "device", "namespace", "pod", "container")
	containerUtilization = describe("gpucdi_container_gpu_utilization_ratio", "Fraction of time in which kernels of a container ran on a GPU, 0 to 1.",
		"gpu", "device", "namespace", "pod", "container")
)

var measurements = []measurement{
	gauge("memory_used_bytes", "Used memory of a GPU.", func(t gpu.Telemetry) *float64 { return toFloat(t.MemoryUsed) }),
	gauge("utilization_ratio", "Fraction of time in which a kernel ran on a GPU, 0 to 1.", func(t gpu.Telemetry) *float64 { return t.Utilization }),
	gauge("memory_utilization_ratio", "Fraction of time in which the memory of a GPU was accessed, 0 to 1.", func(t gpu.Telemetry) *float64 { return t.MemoryUtilization }),
	gauge("encoder_utilization_ratio", "Fraction of time in which the video encoders of a GPU were active, 0 to 1.", func(t gpu.Telemetry) *float64 { return t.EncoderUtilization }),
	gauge("decoder_utilization_ratio", "Fraction of time in which the video decoders of a GPU were active, 0 to 1.", func(t gpu.Telemetry) *float64 { return t.DecoderUtilization }),
	gauge("sm_active_ratio", "Fraction of SMs with work in the latest probe interval, 0 to 1.", func(t gpu.Telemetry) *float64 { return t.Activity.SM }),
	gauge("sm_occupancy_ratio", "Resident warps relative to the maximum in the latest probe interval, 0 to 1.", func(t gpu.Telemetry) *float64 { return t.Activity.Occupancy }),
	gauge("tensor_active_ratio", "Fraction of time in which tensor cores were active in the latest probe interval, 0 to 1.", func(t gpu.Telemetry) *float64 { return t.Activity.Tensor }),
	gauge("memory_bandwidth_utilization_ratio", "Memory bandwidth used in the latest probe interval, relative to the maximum, 0 to 1.", func(t gpu.Telemetry) *float64 { return t.Activity.MemoryBandwidth }),
	gauge("temperature_celsius", "Temperature of a GPU.", func(t gpu.Telemetry) *float64 { return t.Temperature }),
	gauge("memory_temperature_celsius", "Temperature of the memory of a GPU.", func(t gpu.Telemetry) *float64 { return t.MemoryTemperature }),
	gauge("fan_speed_ratio", "Fan speed of a GPU relative to its maximum, which it may exceed.", func(t gpu.Telemetry) *float64 { return t.FanSpeed }),
	gauge("power_watts", "Power draw of a GPU.", func(t gpu.Telemetry) *float64 { return t.Power }),
	gauge("power_limit_watts", "Power limit of a GPU.", func(t gpu.Telemetry) *float64 { return t.PowerLimit }),
	{newGPUDesc("energy_joules_total", "Energy consumption of a GPU since the driver was loaded."), prometheus.CounterValue, nil,
		func(t gpu.Telemetry) *float64 { return t.Energy }},
	gauge("row_remap_pending", "1 if a GPU remaps a row of its memory at the next reset, else 0.", func(t gpu.Telemetry) *float64 { return boolPointerToFloat(t.RemapPending) }),
	gauge("row_remap_failed", "1 if a row of the memory of a GPU cannot be remapped, since no spare rows are left, else 0. The GPU must be replaced.",
		func(t gpu.Telemetry) *float64 { return boolPointerToFloat(t.RemapFailed) }),

	{clocks, prometheus.GaugeValue, []string{"sm"}, func(t gpu.Telemetry) *float64 { return t.SMClock }},
	{clocks, prometheus.GaugeValue, []string{"memory"}, func(t gpu.Telemetry) *float64 { return t.MemoryClock }},
	{eccErrors, prometheus.CounterValue, []string{"corrected"}, func(t gpu.Telemetry) *float64 { return toFloat(t.ECCCorrected) }},
	{eccErrors, prometheus.CounterValue, []string{"uncorrected"}, func(t gpu.Telemetry) *float64 { return toFloat(t.ECCUncorrected) }},

	{pcieBytes, prometheus.CounterValue, transmitted, func(t gpu.Telemetry) *float64 { return toFloat(t.PCIe.TransmittedBytes) }},
	{pcieBytes, prometheus.CounterValue, received, func(t gpu.Telemetry) *float64 { return toFloat(t.PCIe.ReceivedBytes) }},
	{pcieRate, prometheus.GaugeValue, transmitted, func(t gpu.Telemetry) *float64 { return t.PCIe.TransmitRate }},
	{pcieRate, prometheus.GaugeValue, received, func(t gpu.Telemetry) *float64 { return t.PCIe.ReceiveRate }},
	{nvlinkBytes, prometheus.CounterValue, transmitted, func(t gpu.Telemetry) *float64 { return toFloat(t.NVLink.TransmittedBytes) }},
	{nvlinkBytes, prometheus.CounterValue, received, func(t gpu.Telemetry) *float64 { return toFloat(t.NVLink.ReceivedBytes) }},
	{nvlinkRate, prometheus.GaugeValue, transmitted, func(t gpu.Telemetry) *float64 { return t.NVLink.TransmitRate }},
	{nvlinkRate, prometheus.GaugeValue, received, func(t gpu.Telemetry) *float64 { return t.NVLink.ReceiveRate }},
}

var countMetrics = []counts{
	{describe("gpucdi_gpu_clocks_event_seconds_total", "Time in which a reason limited the clock frequency of a GPU, since the driver was loaded.", "gpu", "reason"),
		1e-9, func(t gpu.Telemetry) map[string]uint64 { return t.ClocksEventTimes }},
	{describe("gpucdi_gpu_remapped_rows_total", "Rows of the memory of a GPU that were remapped in its lifetime, by cause: correctable or uncorrectable errors.", "gpu", "cause"),
		1, func(t gpu.Telemetry) map[string]uint64 { return t.RemappedRows }},
	{describe("gpucdi_gpu_retired_pages_total", "Pages of the memory of a GPU that were retired in its lifetime, by cause: single_bit or double_bit errors.", "gpu", "cause"),
		1, func(t gpu.Telemetry) map[string]uint64 { return t.RetiredPages }},
	{describe("gpucdi_gpu_pcie_errors_total", "PCIe errors of a GPU: replay, correctable, non_fatal or fatal.", "gpu", "kind"),
		1, func(t gpu.Telemetry) map[string]uint64 { return t.PCIe.Errors }},
	{describe("gpucdi_gpu_nvlink_errors_total", "Errors of all NVLinks of a GPU: crc_flit, crc_data, replay, recovery or effective.", "gpu", "kind"),
		1, func(t gpu.Telemetry) map[string]uint64 { return t.NVLink.Errors }},
}

var transmitted, received = []string{"transmitted"}, []string{"received"}

func newGPUDesc(name, help string) *prometheus.Desc {
	return describe("gpucdi_gpu_"+name, help, "gpu")
}

func gauge(name, help string, value func(gpu.Telemetry) *float64) measurement {
	return measurement{newGPUDesc(name, help), prometheus.GaugeValue, nil, value}
}

func toFloat(n *uint64) *float64 {
	if n == nil {
		return nil
	}
	return new(float64(*n))
}

func boolPointerToFloat(b *bool) *float64 {
	if b == nil {
		return nil
	}
	return new(boolToFloat(*b))
}

func measurementDescs() []*prometheus.Desc {
	descs := []*prometheus.Desc{clocksEvents, recovery, migInfo, migMemoryBytes, migMemoryUsed, containerMemory, containerUtilization}
	for _, m := range measurements {
		descs = append(descs, m.desc)
	}
	for _, c := range countMetrics {
		descs = append(descs, c.desc)
	}
	return descs
}

// measurements collects the telemetry of a GPU.
func (s sink) measurements(g status.GPU) {
	t := g.Telemetry
	for _, m := range measurements {
		if value := m.value(t); value != nil {
			s.metric(m.desc, m.kind, *value, append([]string{g.UUID}, m.labels...)...)
		}
	}
	for _, c := range countMetrics {
		for key, n := range c.values(t) {
			s.metric(c.desc, prometheus.CounterValue, float64(n)*c.unit, g.UUID, key)
		}
	}
	if t.ClocksEvents != nil {
		for reason, active := range t.ClocksEvents.Reasons() {
			s.gauge(clocksEvents, boolToFloat(active), g.UUID, reason)
		}
	}
	if t.RecoveryAction != "" {
		s.gauge(recovery, 1, g.UUID, t.RecoveryAction)
	}
	s.devicesOf(g)
}

// devicesOf collects the MIG devices of a GPU and the usage of the GPU by containers.
func (s sink) devicesOf(g status.GPU) {
	for _, m := range g.MIGDevices {
		s.gauge(migInfo, 1, g.UUID, m.UUID, m.Profile)
		s.gauge(migMemoryBytes, float64(m.MemoryBytes), g.UUID, m.UUID)
		if used := g.Telemetry.MIG[m.UUID].MemoryUsed; used != nil {
			s.gauge(migMemoryUsed, float64(*used), g.UUID, m.UUID)
		}
	}
	for _, u := range g.Usage {
		labels := []string{g.UUID, u.Device, u.Namespace, u.Pod, u.Container}
		if u.MemoryUsed != nil {
			s.gauge(containerMemory, float64(*u.MemoryUsed), labels...)
		}
		if u.Utilization != nil {
			s.gauge(containerUtilization, *u.Utilization, labels...)
		}
	}
}
