package nvml

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu/health"
)

// probe looks at what a GPU records of its own errors.
func (s session) probe(dev nvml.Device) health.Probe {
	var p health.Probe
	err := errors.Join(
		reach(dev),
		s.probeRecovery(dev, &p),
		s.probeErrors(dev, &p),
		s.probeRepairs(dev, &p),
	)
	if err != nil {
		p.Failed = phrase(err)
	}
	return p
}

// reach asks for something that only the GPU itself knows, and every GPU does.
func reach(dev nvml.Device) error {
	if _, ret := dev.GetMemoryInfo(); ret != nvml.SUCCESS {
		return fmt.Errorf("reaching the GPU: %w", ret)
	}
	return nil
}

func (s session) probeRecovery(dev nvml.Device, p *health.Probe) error {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	known, err := answered("recovery action", dev.GetFieldValues(values))
	if !known || err != nil {
		return err
	}
	known, err = answered("recovery action", nvml.Return(values[0].NvmlReturn))
	if known && err == nil {
		action := health.Recovery(binary.NativeEndian.Uint32(values[0].Value[:]))
		p.Recovery = &action
	}
	return err
}

func (s session) probeErrors(dev nvml.Device, p *health.Probe) error {
	count, ret := dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	known, err := answered("count of memory errors", ret)
	if known && err == nil {
		p.Uncorrected = &count
	}
	return err
}

// probeRepairs asks for replaced rows, or, before Ampere, retired pages.
func (s session) probeRepairs(dev nvml.Device, p *health.Probe) error {
	if s.has("nvmlDeviceGetRemappedRows") {
		_, _, pending, failed, ret := dev.GetRemappedRows()
		known, err := answered("replaced rows of memory", ret)
		if known || err != nil {
			p.RepairPending, p.RowsFailed = pending, failed
			return err
		}
	}
	pending, ret := dev.GetRetiredPagesPendingStatus()
	known, err := answered("retired pages of memory", ret)
	p.RepairPending = known && pending == nvml.FEATURE_ENABLED
	return err
}

// answered says whether the GPU knows what it was asked. The error is for an
// answer that only a GPU in trouble gives.
func answered(what string, ret nvml.Return) (bool, error) {
	switch ret {
	case nvml.SUCCESS:
		return true, nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_INVALID_ARGUMENT:
		return false, nil // of an older GPU or driver
	}
	return false, fmt.Errorf("reading the %s: %w", what, ret)
}
