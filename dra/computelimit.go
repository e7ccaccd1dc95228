package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// errComputeLimit means that the compute time of a claim was not limited.
var errComputeLimit = errors.New("compute time of the claim not limited")

// selectMPS sets the MPSPercentage of a claim's devices. The gate must have granted them, so that the way in which they
// are shared does not change. A program is a client of one MPS server, and each GPU has its own, so a claim can have
// only one device with an MPSPercentage.
func (d *Driver) selectMPS(devices []Device) error {
	first := ""
	for i := range devices {
		device := &devices[i]
		if device.Admin {
			continue
		}
		device.MPSPercentage = d.cfg.MPSPercentage(device.ID, device.Amount, device.ComputeCeiling)
		switch {
		case device.MPSPercentage == 0:
		case first != "":
			return fmt.Errorf("%w: requests %s and %s are for parts of two GPUs, each of which has its own MPS server; use a claim and a container for each",
				errUnsupported, first, device.Request)
		default:
			first = device.Request
		}
	}
	return nil
}

// checkCeiling returns an error if a pod of a claim with an MPSPercentage could remove the limit.
func (d *Driver) checkCeiling(ctx context.Context, r Record, pods []Pod) error {
	if !slices.ContainsFunc(r.Devices, func(device Device) bool { return device.MPSPercentage != 0 }) {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, settingTimeout, errSettingTimeout)
	defer cancel()
	return d.cfg.CheckPods(ctx, r.Namespace, pods)
}

// limitCompute limits the compute time of a claim. Its record must be on disk, so that the limit is removed at the end of
// the claim.
func (d *Driver) limitCompute(ctx context.Context, r Record) error {
	if err := d.cfg.LimitCompute(ctx, r); err != nil {
		return fmt.Errorf("%w: %w", errComputeLimit, err)
	}
	return nil
}

// releaseCompute removes the limit of the compute time. A failure is only logged, so that it does not delay the end of the
// claim's pods. The error reports that ctx has ended.
func (d *Driver) releaseCompute(ctx context.Context, r Record) error {
	limited, cancel := context.WithTimeoutCause(ctx, settingTimeout, errSettingTimeout)
	defer cancel()
	err := d.cfg.ReleaseCompute(limited, r)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		d.log.Warn("limit of the compute time of a claim not removed, will retry", "claim", r.Namespace+"/"+r.Name, "err", err)
	}
	return nil
}
