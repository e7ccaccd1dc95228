package dra

import (
	"context"
	"errors"
	"fmt"
)

// unprepare ends the use of devices by a claim. It succeeds if the claim is not prepared.
func (d *Driver) unprepare(ctx context.Context, ref claimRef) error {
	if err := ref.validate(); err != nil {
		return err
	}
	if err := d.locks.lock(ctx, ref.uid); err != nil {
		return fmt.Errorf("waiting for an earlier call for this claim: %w", err)
	}
	defer d.locks.unlock(ref.uid)
	record, _ := d.records.get(ref.uid)
	record.UID = ref.uid
	return d.release(ctx, record)
}

// ReleaseStale releases a claim that the kubelet will not unprepare, because its checkpoint lacks the claim. stale
// checks this again while no call for the claim is in progress. Another claim gets the devices once no container uses
// them.
func (d *Driver) ReleaseStale(ctx context.Context, uid string, stale func() bool) error {
	if err := d.locks.lock(ctx, uid); err != nil {
		return err
	}
	defer d.locks.unlock(uid)
	record, _ := d.records.get(uid)
	if !stale() {
		return nil
	}
	record.UID = uid // a claim that was restored from the kubelet's checkpoint has no record
	d.log.Warn("stale claim released, the kubelet's checkpoint lacks it", "namespace", record.Namespace, "claim", record.Name, "uid", uid)
	return d.release(ctx, record)
}

// release undoes the time slices and the limit of the compute time of a claim, removes its record, and then its grant.
// After a crash in between, the next call does the rest. If removing the record fails, the claim remains prepared,
// because the next agent would restore the record.
func (d *Driver) release(ctx context.Context, record Record) error {
	if err := errors.Join(d.resetTimeSlices(ctx, record), d.releaseCompute(ctx, record)); err != nil {
		return err
	}
	if err := d.records.remove(record.UID); err != nil {
		return fmt.Errorf("%w; check --state-dir", err)
	}
	d.cfg.Gate.Unprepare(record.UID)
	d.cfg.Changed()
	return nil
}
