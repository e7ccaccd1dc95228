package dra

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gpucdi/gpucdi/gpu"
)

// errTimeSlice means that the time slice of a GPU was not set.
var errTimeSlice = errors.New("time slice not set")

// setTimeSlices sets the time slices that a claim requests. Its record must be on disk, so that they are reset at the
// end of the claim.
func (d *Driver) setTimeSlices(ctx context.Context, r Record) error {
	slices := map[string]gpu.TimeSlice{}
	for _, device := range r.Devices {
		if device.TimeSlice != "" {
			slices[device.ID] = device.TimeSlice
		}
	}
	return d.applyTimeSlices(ctx, slices)
}

// resetTimeSlices restores the default time slices. A failure is only logged, so that it does not delay the end of the
// claim's pods. It returns an error only if ctx has ended.
func (d *Driver) resetTimeSlices(ctx context.Context, r Record) error {
	slices := map[string]gpu.TimeSlice{}
	for _, device := range r.Devices {
		if device.TimeSlice != "" && device.TimeSlice != gpu.TimeSliceDefault {
			slices[device.ID] = gpu.TimeSliceDefault
		}
	}
	err := d.applyTimeSlices(ctx, slices)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		d.log.Warn("time slices of a claim not reset", "claim", r.Namespace+"/"+r.Name, "err", err,
			"remedy", "run nvidia-smi compute-policy -i UUID --set-timeslice 0 on the node, for each GPU in err")
	}
	return nil
}

// applyTimeSlices sets the time slices of GPUs, by UUID, concurrently.
func (d *Driver) applyTimeSlices(ctx context.Context, slices map[string]gpu.TimeSlice) error {
	ctx, cancel := context.WithTimeout(ctx, settingTimeout)
	defer cancel()
	var (
		calls sync.WaitGroup
		mu    sync.Mutex
		errs  []error
	)
	for uuid, slice := range slices {
		calls.Go(func() {
			err := d.cfg.SetTimeSlice(ctx, uuid, slice)
			if errors.Is(err, errors.ErrUnsupported) && slice == gpu.TimeSliceDefault {
				return // the GPU supports only the default
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("%w: %s of %s: %w", errTimeSlice, slice, uuid, err))
			}
		})
	}
	calls.Wait()
	return errors.Join(errs...)
}
