package nvml

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
)

// field is a field value of NVML and where it belongs in the telemetry.
type field struct {
	id, scope uint32
	set       func(t *gpu.Telemetry, value uint64)
	wide      bool // ignore 32-bit values
}

// allLinks is the scope of the sum over all NVLinks.
const allLinks = math.MaxUint32

// gpuFields are the fields of all GPUs.
var gpuFields = []field{
	{id: nvml.FI_DEV_MEMORY_TEMP, set: func(t *gpu.Telemetry, celsius uint64) {
		if celsius > 0 { // 0 without a sensor
			t.MemoryTemperature = scaled(uint32(celsius), 1)
		}
	}},
	{id: nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION, set: func(t *gpu.Telemetry, millijoules uint64) {
		joules := float64(millijoules) / 1000
		t.Energy = &joules
	}},
	{id: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, set: func(t *gpu.Telemetry, action uint64) { t.RecoveryAction = recoveryAction(action) }},

	{id: nvml.FI_DEV_REMAPPED_COR, set: count(remappedRows, "correctable")},
	{id: nvml.FI_DEV_REMAPPED_UNC, set: count(remappedRows, "uncorrectable")},
	{id: nvml.FI_DEV_REMAPPED_PENDING, set: func(t *gpu.Telemetry, v uint64) { t.RemapPending = new(v != 0) }},
	{id: nvml.FI_DEV_REMAPPED_FAILURE, set: func(t *gpu.Telemetry, v uint64) { t.RemapFailed = new(v != 0) }},
	{id: nvml.FI_DEV_RETIRED_SBE, set: count(retiredPages, "single_bit")},
	{id: nvml.FI_DEV_RETIRED_DBE, set: count(retiredPages, "double_bit")},

	{id: nvml.FI_DEV_PERF_POLICY_THERMAL, set: count(clocksEventTimes, "sw_thermal")}, // before driver 580
	{id: nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, set: count(clocksEventTimes, "sw_thermal")},
	{id: nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, set: count(clocksEventTimes, "sw_power_cap")},
	{id: nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, set: count(clocksEventTimes, "hw_thermal")},
	{id: nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, set: count(clocksEventTimes, "hw_power_brake")},

	// With 32 bits these wrap around every 4 GiB, which takes 70 ms on a fast link.
	{id: nvml.FI_DEV_PCIE_COUNT_TX_BYTES, wide: true, set: func(t *gpu.Telemetry, v uint64) { t.PCIe.TransmittedBytes = &v }},
	{id: nvml.FI_DEV_PCIE_COUNT_RX_BYTES, wide: true, set: func(t *gpu.Telemetry, v uint64) { t.PCIe.ReceivedBytes = &v }},
	{id: nvml.FI_DEV_PCIE_REPLAY_COUNTER, set: count(pcieErrors, "replay")},
	{id: nvml.FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, set: count(pcieErrors, "correctable")},
	{id: nvml.FI_DEV_PCIE_COUNT_NON_FATAL_ERROR, set: count(pcieErrors, "non_fatal")},
	{id: nvml.FI_DEV_PCIE_COUNT_FATAL_ERROR, set: count(pcieErrors, "fatal")},
}

// nvlinkFields are the fields of GPUs with NVLinks. Throughputs are in KiB.
var nvlinkFields = []field{
	{id: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, scope: allLinks, set: func(t *gpu.Telemetry, v uint64) { t.NVLink.TransmittedBytes = new(v << 10) }},
	{id: nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, scope: allLinks, set: func(t *gpu.Telemetry, v uint64) { t.NVLink.ReceivedBytes = new(v << 10) }},
	{id: nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, set: count(nvlinkErrors, "crc_flit")},
	{id: nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, set: count(nvlinkErrors, "crc_data")},
	{id: nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, set: count(nvlinkErrors, "replay")},
	{id: nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, set: count(nvlinkErrors, "recovery")},
}

// nvlink5Fields are error counters of NVLink 5, which lacks most of those in nvlinkFields. NVML reports them only
// per link.
var nvlink5Fields = perLink(map[uint32]string{
	nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS: "recovery",
	nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS:     "effective",
})

// nvlink5Links is the number of NVLinks of a GPU with NVLink 5.
const nvlink5Links = 18

func perLink(kinds map[uint32]string) (fields []field) {
	for id, kind := range kinds {
		for link := range uint32(nvlink5Links) {
			fields = append(fields, field{id: id, scope: link, set: func(t *gpu.Telemetry, v uint64) { add(nvlinkErrors(t), kind, v) }})
		}
	}
	return fields
}

func remappedRows(t *gpu.Telemetry) *map[string]uint64     { return &t.RemappedRows }
func retiredPages(t *gpu.Telemetry) *map[string]uint64     { return &t.RetiredPages }
func clocksEventTimes(t *gpu.Telemetry) *map[string]uint64 { return &t.ClocksEventTimes }
func pcieErrors(t *gpu.Telemetry) *map[string]uint64       { return &t.PCIe.Errors }
func nvlinkErrors(t *gpu.Telemetry) *map[string]uint64     { return &t.NVLink.Errors }

// count returns a function that stores a count under a key. A later field with the same key takes precedence.
func count(of func(*gpu.Telemetry) *map[string]uint64, key string) func(*gpu.Telemetry, uint64) {
	return func(t *gpu.Telemetry, value uint64) {
		counts := of(t)
		delete(*counts, key)
		add(counts, key, value)
	}
}

func add(counts *map[string]uint64, key string, value uint64) {
	if *counts == nil {
		*counts = map[string]uint64{}
	}
	(*counts)[key] += value
}

// readFields reads all measurements that have a field ID: in a single call, or in two with NVLink 5.
func readFields(t *gpu.Telemetry, dev nvml.Device, nvlinks bool) {
	if !nvlinks {
		setFields(t, dev, gpuFields)
		return
	}
	setFields(t, dev, allFields)
	if _, supported := t.NVLink.Errors["recovery"]; !supported {
		setFields(t, dev, nvlink5Fields)
	}
}

var allFields = slices.Concat(gpuFields, nvlinkFields)

func setFields(t *gpu.Telemetry, dev nvml.Device, fields []field) {
	values := make([]nvml.FieldValue, len(fields))
	for i, f := range fields {
		values[i] = nvml.FieldValue{FieldId: f.id, ScopeId: f.scope, NvmlReturn: uint32(nvml.ERROR_NOT_SUPPORTED)}
	}
	if dev.GetFieldValues(values) != nvml.SUCCESS {
		return
	}
	for i, f := range fields {
		if value, ok := number(values[i]); ok && (!f.wide || values[i].ValueType != uint32(nvml.VALUE_TYPE_UNSIGNED_INT)) {
			f.set(t, value)
		}
	}
}

// number returns a field's value, unless it could not be read or is not a natural number.
func number(f nvml.FieldValue) (uint64, bool) {
	if nvml.Return(f.NvmlReturn) != nvml.SUCCESS {
		return 0, false
	}
	var value int64
	switch v := f.Value[:]; nvml.ValueType(f.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return binary.NativeEndian.Uint64(v), true
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return uint64(binary.NativeEndian.Uint32(v)), true
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return uint64(binary.NativeEndian.Uint16(v)), true
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		value = int64(binary.NativeEndian.Uint64(v))
	case nvml.VALUE_TYPE_SIGNED_INT:
		value = int64(int32(binary.NativeEndian.Uint32(v)))
	default:
		return 0, false
	}
	return uint64(value), value >= 0
}

// recoveryAction returns the name of a recovery action.
func recoveryAction(action uint64) string {
	names := [...]string{
		health.RecoveryNone:          "none",
		health.RecoveryReset:         "reset",
		health.RecoveryReboot:        "reboot",
		health.RecoveryDrainP2P:      "drain_p2p",
		health.RecoveryDrainAndReset: "drain_and_reset",
		health.RecoveryIMEXDomain:    "imex_domain",
		health.RecoveryBusReset:      "bus_reset",
		health.RecoverySystemReboot:  "system_reboot",
	}
	if action >= uint64(len(names)) {
		return "other"
	}
	return names[action]
}
