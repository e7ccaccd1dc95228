package dra

import (
	"context"
	"fmt"
	"slices"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/internal/host"
)

// prepareReallocated prepares a claim that was allocated again, after its pods were deleted by force. The gate withholds
// the former devices from other claims while containers use them.
func (d *Driver) prepareReallocated(ctx context.Context, ref claimRef, former Record, claim cluster.Claim, devices []Device) (Record, error) {
	if err := d.checkFormer(ref.uid, devices); err != nil {
		return Record{}, err
	}
	if err := d.release(ctx, former); err != nil {
		return Record{}, err
	}
	return d.prepareNew(ctx, ref, claim)
}

// replaceRestored replaces a claim that was restored from the kubelet's checkpoint by the record with its allocation. The
// restored claim may have been allocated again since, or it holds devices that it only monitors.
func (d *Driver) replaceRestored(r Record) error {
	restored, found := d.cfg.Gate.Claim(r.UID)
	claim := r.grant()
	if !found || restored.SameDevices(claim) {
		return nil
	}
	if err := d.checkFormer(r.UID, r.Devices); err != nil {
		return err
	}
	if slices.ContainsFunc(claim.Devices, func(id string) bool { return !slices.Contains(restored.Devices, id) }) {
		d.cfg.Gate.Unprepare(r.UID) // the gate has to check the new devices
		return nil
	}
	d.cfg.Gate.Restore(claim)
	return nil
}

// checkFormer returns an error if the kubelet would give the pods of a claim other devices in addition to the given ones.
// This is the case if the claim was allocated again, and the kubelet restarted before it unprepared the claim.
func (d *Driver) checkFormer(uid string, devices []Device) error {
	names, err := d.cfg.KubeletDevices(uid)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !slices.ContainsFunc(devices, func(device Device) bool { return device.Name == name }) {
			return fmt.Errorf("the kubelet would also give its pods %s, which the claim had before; delete the pods of the claim",
				host.Printable(name, maxShown))
		}
	}
	return nil
}
