package nvml

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu/health"
)

// probe checks that a GPU responds, and reads its error state. lost reports whether the GPU is lost.
func (s session) probe(dev nvml.Device) (p health.Probe, lost bool) {
	err := errors.Join(
		checkReachable(dev),
		s.probeRecovery(dev, &p),
		s.probeErrors(dev, &p),
		s.probeRepairs(dev, &p),
	)
	if err != nil {
		p.Failed = errorText(err)
	}
	return p, errors.Is(err, nvml.ERROR_GPU_IS_LOST)
}

// checkReachable makes a call that requires access to the hardware. GPUs that share the memory of the system do not
// support it, but the driver responds.
func checkReachable(dev nvml.Device) error {
	if _, ret := dev.GetMemoryInfo(); ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
		return fmt.Errorf("reaching the GPU: %w", ret)
	}
	return nil
}

func (s session) probeRecovery(dev nvml.Device, p *health.Probe) error {
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	ok, err := supported("recovery action", dev.GetFieldValues(values))
	if !ok || err != nil {
		return err
	}
	ok, err = supported("recovery action", nvml.Return(values[0].NvmlReturn))
	if ok && err == nil {
		action := health.Recovery(binary.NativeEndian.Uint32(values[0].Value[:]))
		p.Recovery = &action
	}
	return err
}

func (s session) probeErrors(dev nvml.Device, p *health.Probe) error {
	count, ret := dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	ok, err := supported("uncorrectable ECC error count", ret)
	if ok && err == nil {
		p.Uncorrected = &count
	}
	return err
}

// probeRepairs reads the state of row remapping or, before Ampere, of page retirement.
func (s session) probeRepairs(dev nvml.Device, p *health.Probe) error {
	if s.has("nvmlDeviceGetRemappedRows") {
		_, _, pending, failed, ret := dev.GetRemappedRows()
		ok, err := supported("remapped rows", ret)
		if ok || err != nil {
			p.RepairPending, p.RowsFailed = pending, failed
			return err
		}
	}
	pending, ret := dev.GetRetiredPagesPendingStatus()
	ok, err := supported("pending page retirements", ret)
	p.RepairPending = ok && pending == nvml.FEATURE_ENABLED
	return err
}

// supported reports whether the GPU and the driver support a call that returned ret. It returns an error if the call
// failed for another reason.
func supported(what string, ret nvml.Return) (bool, error) {
	switch ret {
	case nvml.SUCCESS:
		return true, nil
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_INVALID_ARGUMENT:
		return false, nil // older GPU or driver
	}
	return false, fmt.Errorf("reading the %s: %w", what, ret)
}
