package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// limitPoll is the time between attempts to limit the memory of a pod. They fail while the driver worker restarts, which it
// does when the config enables limits.
const limitPoll = time.Second

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
// first pod only, so that others would start without a limit.
func (r Record) checkPods(pods []Pod) error {
	if len(pods) == 1 || !r.partial() {
		return nil
	}
	var names []string
	for _, p := range pods[:min(len(pods), maxPodsShown)] {
		names = append(names, p.Name)
	}
	return fmt.Errorf("%w, got %d %q; use a ResourceClaimTemplate, with which each pod gets a claim of its own", errOnePod, len(pods), names)
}

// limitMemory limits the memory of the pod of a claim with a part of a GPU, and retries until ctx ends.
func (d *Driver) limitMemory(ctx context.Context, r Record, pods []Pod) error {
	if !r.partial() {
		return nil
	}
	uid := pods[0].UID
	if err := d.locks.lock(ctx, uid); err != nil {
		return fmt.Errorf("%w: waiting for another claim of the pod: %w", errMemoryLimit, err)
	}
	defer d.locks.unlock(uid)
	for {
		err := d.cfg.LimitMemory(ctx, uid)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(limitPoll):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errMemoryLimit, err)
		}
	}
}
