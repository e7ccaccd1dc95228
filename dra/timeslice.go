package dra

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// errTimeSlice means that the time slice of a GPU was not set.
var errTimeSlice = errors.New("time slice not set")

// setTimeSlices sets the time slices that a claim requests. Its record must be on disk, so that they are reset at the
// end of the claim.
func (d *Driver) setTimeSlices(ctx context.Context, r Record) error {
	return d.applyTimeSlices(ctx, r.timeSlices())
}

// timeSlices returns the time slices that a claim requests, by UUID of the GPU.
func (r Record) timeSlices() map[string]gpu.TimeSlice {
	requested := map[string]gpu.TimeSlice{}
	for _, device := range r.Devices {
		if device.TimeSlice != "" {
			requested[device.ID] = device.TimeSlice
		}
	}
	return requested
}

// RestoreTimeSlices sets the time slices of claims again, after the driver may have lost them. It skips claims that are not
// prepared any more. It returns the claims for which it failed.
func (d *Driver) RestoreTimeSlices(ctx context.Context, claims []Record) (failed []Record) {
	for _, r := range claims {
		requested := r.timeSlices()
		if len(requested) == 0 {
			continue
		}
		err := d.restoreTimeSlices(ctx, r.UID)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			failed = append(failed, r)
			log := d.log.With("claim", r.Namespace+"/"+r.Name, "gpus", slices.Sorted(maps.Keys(requested)), "err", err)
			if errors.Is(err, errTimeSlice) {
				log = log.With("remedy", "check that nvidia-smi works on the node")
			}
			log.Warn("time slices of a claim not restored, will retry")
		}
	}
	return failed
}

func (d *Driver) restoreTimeSlices(ctx context.Context, uid string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settingTimeout, errSettingTimeout)
	defer cancel()
	if err := d.locks.lock(ctx, uid); err != nil {
		return fmt.Errorf("waiting for an earlier call for this claim: %w", err)
	}
	defer d.locks.unlock(uid)
	r, _ := d.records.get(uid) // without devices if the claim was released
	return d.setTimeSlices(ctx, r)
}

// resetTimeSlices restores the default time slices. A failure is only logged, so that it does not delay the end of the
// claim's pods. It returns an error only if ctx has ended.
func (d *Driver) resetTimeSlices(ctx context.Context, r Record) error {
	defaults := map[string]gpu.TimeSlice{}
	for uuid, slice := range r.timeSlices() {
		if slice != gpu.TimeSliceDefault {
			defaults[uuid] = gpu.TimeSliceDefault
		}
	}
	err := d.applyTimeSlices(ctx, defaults)
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
func (d *Driver) applyTimeSlices(ctx context.Context, wanted map[string]gpu.TimeSlice) error {
	ctx, cancel := context.WithTimeout(ctx, settingTimeout)
	defer cancel()
	var (
		calls sync.WaitGroup
		mu    sync.Mutex
		errs  []error
	)
	for uuid, slice := range wanted {
		calls.Go(func() {
			err := d.setTimeSlice(ctx, uuid, slice)
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

// setTimeSlice sets the time slice of a GPU. If an earlier call for the GPU timed out, it waits until that call has ended,
// because only then the new value is the last one. It returns early if ctx ends.
func (d *Driver) setTimeSlice(ctx context.Context, uuid string, slice gpu.TimeSlice) error {
	for {
		err := d.cfg.SetTimeSlice(ctx, uuid, slice)
		if !errors.Is(err, host.ErrNotExited) {
			return err
		}
		select {
		case <-time.After(settingPoll):
		case <-ctx.Done():
			return err
		}
	}
}
