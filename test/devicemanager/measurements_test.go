package devicemanager

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// Clocks event reasons in NVML's bit mask.
const (
	swPowerCap = 0x4
	hwThermal  = 0x40
)

// Every measurement of the driver is in the metrics, in base units.
func TestMeasurements(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	startKubelet(t, n.kubeletDir, 2)
	gpus := n.driver.State().GPUs
	whole, partitioned := gpus[0].UUID, gpus[1].UUID
	if err := n.driver.Partition(partitioned, "1g.10gb"); err != nil {
		t.Fatal(err)
	}
	if err := n.driver.Update(func(s *simdriver.State) error {
		g := s.GPU(whole)
		g.MemoryUtilization, g.Encoder, g.Decoder, g.Fan, g.MemoryTemperature = 40, 30, 20, 110, 85
		g.Energy, g.ClocksEvents = 12_345, swPowerCap|hwThermal
		g.RecoveryAction, g.RemappedCor, g.RemappedUnc, g.RetiredSBE, g.RetiredDBE = simdriver.RecoveryIMEXDomain, 3, 2, 6, 7
		g.Counters = simdriver.Counters{SWPower: 1_500_000_000, SWThermal: 2_000_000_000, PCIeBits: 64, PCIeTransmitted: 5_000_000_000,
			PCIeReceived: 6_000_000_000, PCIeReplays: 8, PCIeCorrectable: 9, PCIeNonFatal: 10, PCIeFatal: 11,
			NVLinkTransmitted: 12, NVLinkReceived: 13, NVLinkCRCFlit: 14, NVLinkCRCData: 15, NVLinkReplays: 16, NVLinkRecoveries: 17}
		g.Activity = simdriver.Activity{SM: 90, Occupancy: 50, Tensor: 80, DRAM: 70, PCIeTransmit: 1, PCIeReceive: 2, NVLinkTransmit: 3, NVLinkReceive: 4}
		s.GPU(partitioned).MIG[0].Used = 3 << 20
		s.GPU(partitioned).Counters.PCIeBits = 32
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	part := n.driver.State().GPUs[1].MIG[0].UUID
	n.startAgent(t)
	for _, m := range []struct{ name, labels, value string }{
		{"memory_utilization_ratio", "", "0.4"}, {"encoder_utilization_ratio", "", "0.3"}, {"decoder_utilization_ratio", "", "0.2"},
		{"fan_speed_ratio", "", "1.1"}, {"memory_temperature_celsius", "", "85"}, {"power_limit_watts", "", "700"},
		{"energy_joules_total", "", "12.345"},
		{"clocks_event", `,reason="sw_power_cap"`, "1"}, {"clocks_event", `,reason="hw_thermal"`, "1"}, {"clocks_event", `,reason="sw_thermal"`, "0"},
		{"clocks_event_seconds_total", `,reason="sw_power_cap"`, "1.5"}, {"clocks_event_seconds_total", `,reason="sw_thermal"`, "2"},
		{"pcie_errors_total", `,kind="replay"`, "8"}, {"pcie_errors_total", `,kind="correctable"`, "9"},
		{"pcie_errors_total", `,kind="non_fatal"`, "10"}, {"pcie_errors_total", `,kind="fatal"`, "11"},
		{"nvlink_errors_total", `,kind="crc_flit"`, "14"}, {"nvlink_errors_total", `,kind="crc_data"`, "15"},
		{"nvlink_errors_total", `,kind="replay"`, "16"}, {"nvlink_errors_total", `,kind="recovery"`, "17"},
		{"sm_active_ratio", "", "0.9"}, {"sm_occupancy_ratio", "", "0.5"}, {"tensor_active_ratio", "", "0.8"},
		{"memory_bandwidth_utilization_ratio", "", "0.7"}, {"row_remap_pending", "", "0"}, {"row_remap_failed", "", "0"},
	} {
		n.awaitMetric(t, fmt.Sprintf("gpucdi_gpu_%s{gpu=%q%s} %s\n", m.name, whole, m.labels, m.value))
	}
	for _, m := range []struct{ name, label, value string }{
		{"recovery_action", `action="imex_domain"`, "1"},
		{"remapped_rows_total", `cause="correctable"`, "3"}, {"remapped_rows_total", `cause="uncorrectable"`, "2"},
		{"retired_pages_total", `cause="single_bit"`, "6"}, {"retired_pages_total", `cause="double_bit"`, "7"},
		{"pcie_bytes_total", `direction="transmitted"`, "5e+09"}, {"pcie_bytes_total", `direction="received"`, "6e+09"},
		{"pcie_bytes_per_second", `direction="transmitted"`, "1.048576e+06"}, {"pcie_bytes_per_second", `direction="received"`, "2.097152e+06"},
		{"nvlink_bytes_total", `direction="transmitted"`, "12288"}, {"nvlink_bytes_total", `direction="received"`, "13312"},
		{"nvlink_bytes_per_second", `direction="transmitted"`, "3.145728e+06"}, {"nvlink_bytes_per_second", `direction="received"`, "4.194304e+06"},
	} {
		n.awaitMetric(t, fmt.Sprintf("gpucdi_gpu_%s{%s,gpu=%q} %s\n", m.name, m.label, whole, m.value))
	}
	n.awaitMetric(t, fmt.Sprintf("gpucdi_mig_device_info{device=%q,gpu=%q,profile=%q} 1\n", part, partitioned, "1g.10gb"))
	n.awaitMetric(t, fmt.Sprintf("gpucdi_mig_device_memory_bytes{device=%q,gpu=%q} %s\n", part, partitioned, "1.0468982784e+10"))
	n.awaitMetric(t, fmt.Sprintf("gpucdi_mig_device_memory_used_bytes{device=%q,gpu=%q} %s\n", part, partitioned, "3.145728e+06"))
	out := n.get(t, "/metrics")
	for _, absent := range []string{"gpucdi_gpu_pcie_bytes_total{direction=\"received\",gpu=%q}", // ignored with 32 bits
		"gpucdi_gpu_sm_active_ratio{gpu=%q}", "gpucdi_gpu_encoder_utilization_ratio{gpu=%q}", "gpucdi_gpu_fan_speed_ratio{gpu=%q}"} {
		if metric := fmt.Sprintf(absent, partitioned); strings.Contains(out, metric) {
			t.Errorf("%s must be absent, but has a value", metric)
		}
	}
}

// A probe calls each NVML function at most three times for each GPU, and never nvmlDeviceGetPcieThroughput, which
// blocks for 20 ms.
func TestCallsPerProbe(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	n.awaitCalls(t, "nvmlEventSetWait_v2", 2)
	before := n.nvmlCallCounts(t)
	n.awaitCalls(t, "nvmlEventSetWait_v2", before["nvmlEventSetWait_v2"]+10)
	total := uint64(0)
	probes := n.nvmlCallCounts(t)["nvmlEventSetWait_v2"] - before["nvmlEventSetWait_v2"]
	for name, calls := range n.nvmlCallCounts(t) {
		calls -= before[name]
		total += calls
		if limit := 8 * 3 * (probes + 1); calls > limit {
			t.Errorf("%d calls of %s for 8 GPUs in %d probes", calls, name, probes)
		}
		if name == "nvmlDeviceGetPcieThroughput" {
			t.Errorf("%s, which blocks for 20 ms, was called", name)
		}
	}
	t.Logf("%.1f calls for each GPU and probe", float64(total)/float64(probes)/8)
}
