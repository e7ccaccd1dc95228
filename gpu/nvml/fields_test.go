package nvml

import (
	"encoding/binary"
	"maps"
	"math"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
)

// fieldReader is a GPU whose field values are 32-bit numbers.
type fieldReader struct {
	nvml.Device
	values map[uint32]uint32
	calls  *int
}

func (r fieldReader) GetFieldValues(fields []nvml.FieldValue) nvml.Return {
	*r.calls++
	for i := range fields {
		if value, supported := r.values[fields[i].FieldId]; supported {
			fields[i].NvmlReturn, fields[i].ValueType = uint32(nvml.SUCCESS), uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
			binary.NativeEndian.PutUint32(fields[i].Value[:], value)
		}
	}
	return nvml.SUCCESS
}

func TestReadFields(t *testing.T) {
	for name, tc := range map[string]struct {
		values  map[uint32]uint32
		nvlinks bool
		errors  map[string]uint64
		calls   int
	}{
		"NVLink 4":   {map[uint32]uint32{nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: 7}, true, map[string]uint64{"recovery": 7}, 1},
		"NVLink 5":   {map[uint32]uint32{nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS: 1, nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS: 2}, true, map[string]uint64{"recovery": 18, "effective": 36}, 2},
		"no NVLinks": {map[uint32]uint32{nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS: 1}, false, nil, 1},
	} {
		var telemetry gpu.Telemetry
		calls := 0
		tc.values[nvml.FI_DEV_PCIE_COUNT_TX_BYTES] = 1
		readFields(&telemetry, fieldReader{values: tc.values, calls: &calls}, tc.nvlinks)
		if !maps.Equal(telemetry.NVLink.Errors, tc.errors) || calls != tc.calls || telemetry.PCIe.TransmittedBytes != nil {
			t.Errorf("%s: got %v in %d calls, want %v in %d; PCIe %v", name, telemetry.NVLink.Errors, calls, tc.errors, tc.calls, telemetry.PCIe)
		}
	}
}

func TestNumber(t *testing.T) {
	bits := func(v uint64) (b [8]byte) { binary.NativeEndian.PutUint64(b[:], v); return b }
	for _, tc := range []struct {
		kind  nvml.ValueType
		value uint64
		want  uint64
		ok    bool
	}{
		{nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, math.MaxUint64, math.MaxUint64, true},
		{nvml.VALUE_TYPE_UNSIGNED_INT, 1<<40 + 7, 7, true},
		{nvml.VALUE_TYPE_UNSIGNED_SHORT, 1<<20 + 7, 7, true},
		{nvml.VALUE_TYPE_SIGNED_LONG_LONG, 7, 7, true},
		{nvml.VALUE_TYPE_SIGNED_LONG_LONG, math.MaxUint64, 0, false},
		{nvml.VALUE_TYPE_SIGNED_INT, math.MaxUint32, 0, false},
		{nvml.VALUE_TYPE_DOUBLE, math.Float64bits(7), 0, false},
		{nvml.VALUE_TYPE_COUNT, 7, 0, false},
	} {
		if got, ok := number(nvml.FieldValue{ValueType: uint32(tc.kind), Value: bits(tc.value)}); ok != tc.ok || ok && got != tc.want {
			t.Errorf("type %d of %d: got %d, %t, want %d, %t", tc.kind, tc.value, got, ok, tc.want, tc.ok)
		}
	}
	if _, ok := number(nvml.FieldValue{NvmlReturn: uint32(nvml.ERROR_NOT_SUPPORTED), ValueType: uint32(nvml.VALUE_TYPE_UNSIGNED_INT)}); ok {
		t.Error("got the value of a field that is not supported")
	}
}

func TestRecoveryAction(t *testing.T) {
	for action, want := range map[uint64]string{0: "none", 1: "reset", 7: "system_reboot", 8: "other", math.MaxUint64: "other"} {
		if got := recoveryAction(action); got != want {
			t.Errorf("%d: got %q, want %q", action, got, want)
		}
	}
}
