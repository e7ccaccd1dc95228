package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
)

var (
	// errMemoryLimit means that the memory of a pod was not limited.
	errMemoryLimit = errors.New("GPU memory of the pod not limited")
	// errOnePod means that a claim with a part of a GPU is reserved for several pods, or for none.
	errOnePod = errors.New("the claim has a part of a GPU, so it must be reserved for exactly one pod")
)

// partial reports whether a claim has a part of a GPU, whose memory is limited.
func (r Record) partial() bool {
	return slices.ContainsFunc(r.Devices, func(d Device) bool { return !d.Admin && d.Amount.Partial() })
}

// checkPods returns an error if a claim with a part of a GPU is not for one pod. The kubelet prepares a claim for the
// first pod only, so others would start without a limit.
func (r Record) checkPods(pods []Pod) error {
	if len(pods) == 1 || !r.partial() {
		return nil
	}
	var names []string
	for _, p := range pods[:min(len(pods), maxPodsShown)] {
		names = append(names, p.Name)
	}
	return fmt.Errorf("%w, got %d %q; use a ResourceClaimTemplate to give each pod its own claim", errOnePod, len(pods), names)
}

// limitMemory limits the memory of the pods of a claim with a part of a GPU, and retries until ctx ends.
func (d *Driver) limitMemory(ctx context.Context, r Record, pods []Pod) error {
	if !r.partial() {
		return nil
	}
	for {
		err := d.limitPods(ctx, pods)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(settingPoll):
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", errMemoryLimit, err)
		}
	}
}

// limitPods limits the memory of pods. It skips pods that have ended, but returns an error if all have.
func (d *Driver) limitPods(ctx context.Context, pods []Pod) error {
	var ended, failed []error
	for _, p := range pods {
		switch err := d.limitPod(ctx, p.UID); {
		case errors.Is(err, fs.ErrNotExist):
			ended = append(ended, err)
		case err != nil:
			failed = append(failed, err)
		}
	}
	if len(ended) == len(pods) {
		return errors.Join(ended...)
	}
	return errors.Join(failed...)
}

// limitPod limits the memory of a pod to that of all its claims.
func (d *Driver) limitPod(ctx context.Context, uid string) error {
	if err := d.locks.lock(ctx, uid); err != nil {
		return fmt.Errorf("waiting for another claim of the pod: %w", err)
	}
	defer d.locks.unlock(uid)
	return d.cfg.LimitMemory(ctx, uid)
}

// RestoreLimits restores the memory limits of the pods of all claims with a part of a GPU. The driver loses them when
// it is reloaded. using returns the UIDs of the pods that use a claim. After a pod was deleted by force, they can
// include its successor, for which the kubelet does not prepare the claim again. Pods that have ended are skipped.
func (d *Driver) RestoreLimits(ctx context.Context, using func(claim string) []string) error {
	var errs []error
	restored := map[string]bool{}
	restore := func(p Pod) {
		if restored[p.UID] {
			return
		}
		restored[p.UID] = true
		if err := d.limitPod(ctx, p.UID); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("%w: pod %s: %w", errMemoryLimit, cmp.Or(p.Name, p.UID), err))
		}
	}
	for _, r := range d.Records() {
		if !r.partial() {
			continue
		}
		uids := using(r.UID)
		r, err := d.addPods(ctx, r, uids)
		if err != nil { // they run nevertheless
			errs = append(errs, err)
			r = r.withPods(unnamed(uids))
		}
		for _, p := range r.Pods {
			restore(p)
		}
	}
	for _, c := range d.cfg.Gate.Claims() { // those whose records are lost, too
		if !hasPart(c) {
			continue
		}
		for _, p := range unnamed(slices.Concat(using(c.UID), c.Pods)) {
			restore(p)
		}
	}
	return errors.Join(errs...)
}

// hasPart reports whether a claim has a part of a GPU.
func hasPart(c allocator.Claim) bool {
	for _, amount := range c.Amounts {
		if amount.Partial() {
			return true
		}
	}
	return false
}

// addPods adds pods that use a claim to its record.
func (d *Driver) addPods(ctx context.Context, r Record, using []string) (Record, error) {
	if !r.lacks(using) {
		return r, nil
	}
	if err := d.locks.lock(ctx, r.UID); err != nil {
		return r, err
	}
	defer d.locks.unlock(r.UID)
	claim, err := d.read(ctx, claimRef{r.UID, r.Namespace, r.Name})
	if err != nil {
		return r, fmt.Errorf("claim %s/%s: %w", r.Namespace, r.Name, err)
	}
	record, recorded := d.records.get(r.UID)
	if !recorded {
		return Record{}, nil // the claim was released meanwhile
	}
	next := record.withPods(podsOf(claim))
	if next.lacks(using) { // a pod was deleted before its name was read
		next = next.withPods(unnamed(using))
	}
	if slices.Equal(next.Pods, record.Pods) { // already added, or more than maxPods use the claim
		return record, nil
	}
	if err := d.records.save(next); err != nil {
		return record, fmt.Errorf("%w; check --state-dir", err)
	}
	d.cfg.Gate.Restore(next.grant())
	d.cfg.Changed()
	return next, nil
}

// unnamed returns pods whose names are not known.
func unnamed(uids []string) (pods []Pod) {
	for _, uid := range uids {
		pods = append(pods, Pod{UID: uid})
	}
	return pods
}

// lacks reports whether the record lacks one of the pods with these UIDs.
func (r Record) lacks(uids []string) bool {
	return slices.ContainsFunc(uids, func(uid string) bool {
		return !slices.ContainsFunc(r.Pods, func(p Pod) bool { return p.UID == uid })
	})
}
