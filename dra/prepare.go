package dra

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/internal/host"
)

const (
	// callTimeout bounds a call. The kubelet waits 45 s, and reports a timeout without the reason.
	callTimeout = 40 * time.Second
	// settingTimeout bounds the time to change the settings of a claim's GPUs. A change takes less than a second unless a
	// GPU hangs.
	settingTimeout = 10 * time.Second
	// settingPoll is the time between attempts to change a setting. Memory limits fail while the driver worker restarts,
	// which it does when the config enables limits. Time slices fail while an nvidia-smi that timed out has not exited.
	settingPoll = time.Second
	// rereadTimeout bounds the request for a claim that is already prepared. Its record suffices if the request fails.
	rereadTimeout = 2 * time.Second
	// gatePoll bounds the time between attempts to get devices that are held.
	gatePoll = time.Second
	// maxClaims bounds the claims in a call. The kubelet sends the claims of one pod.
	maxClaims = 256
	// maxMessage bounds an error in a response, in bytes. The kubelet includes it in an Event.
	maxMessage = 900
	// maxName bounds the namespace and the name of a claim, in bytes.
	maxName = 253
)

var (
	errStopping = errors.New("the driver is stopping; the kubelet retries")
	errCanceled = errors.New("the kubelet canceled the call")
	errTimeout  = fmt.Errorf("not done after %s; the kubelet retries", callTimeout)
	errReplaced = errors.New("another claim has this name")

	errSettingTimeout = fmt.Errorf("no response within %s", settingTimeout)
)

// claimRef identifies a claim in a call by the kubelet.
type claimRef struct{ uid, namespace, name string }

func (c claimRef) String() string { return c.namespace + "/" + c.name }

// validate checks the fields, which become part of file names, URLs and messages.
func (c claimRef) validate() error {
	if !isUID(c.uid) {
		return fmt.Errorf("invalid claim UID %q", host.Printable(c.uid, maxShown))
	}
	for _, name := range []string{c.namespace, c.name} {
		if name == "" || len(name) > maxName {
			return fmt.Errorf("invalid claim name %q in namespace %q", host.Printable(c.name, maxShown), host.Printable(c.namespace, maxShown))
		}
	}
	return nil
}

// forEach runs do concurrently for each claim of a call by the kubelet, and waits until all have returned.
func (d *Driver) forEach(ctx context.Context, claims []*drapb.Claim, do func(ctx context.Context, c claimRef)) error {
	if len(claims) > maxClaims {
		return fmt.Errorf("%d claims in one call are more than the maximum of %d", len(claims), maxClaims)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errTimeout)
	defer cancel()
	var calls sync.WaitGroup
	seen := map[string]bool{}
	for _, c := range claims {
		if uid := c.GetUid(); !seen[uid] {
			seen[uid] = true
			calls.Go(func() { do(ctx, claimRef{uid, c.GetNamespace(), c.GetName()}) })
		}
	}
	calls.Wait()
	return nil
}

// prepare prepares a claim and returns its record, which is on disk.
func (d *Driver) prepare(ctx context.Context, ref claimRef) (Record, error) {
	if err := ref.validate(); err != nil {
		return Record{}, err
	}
	if err := d.locks.lock(ctx, ref.uid); err != nil {
		return Record{}, fmt.Errorf("waiting for an earlier call for this claim: %w", err)
	}
	defer d.locks.unlock(ref.uid)
	earlier, recorded := d.records.get(ref.uid)
	if recorded && earlier.Damaged == "" {
		return d.prepareAgain(ctx, ref, earlier)
	}
	claim, err := d.read(ctx, ref)
	if err != nil {
		return Record{}, err
	}
	return d.prepareNew(ctx, ref, claim)
}

// read reads the claim that the kubelet refers to.
func (d *Driver) read(ctx context.Context, ref claimRef) (cluster.Claim, error) {
	claim, err := d.cfg.Claims.Claim(ctx, ref.namespace, ref.name)
	if err != nil {
		return cluster.Claim{}, fmt.Errorf("reading the claim: %w", err)
	}
	if claim.UID != ref.uid {
		return cluster.Claim{}, fmt.Errorf("reading the claim: %w: its UID is %q, not %s", errReplaced, host.Printable(claim.UID, maxShown), ref.uid)
	}
	return claim, nil
}

// prepareNew prepares a claim that has no record, or a damaged one.
func (d *Driver) prepareNew(ctx context.Context, ref claimRef, claim cluster.Claim) (Record, error) {
	devices, err := devicesOf(claim, d.cfg.Driver, d.cfg.Pool)
	if err == nil && d.records.full() {
		err = fmt.Errorf("%w not written: %d claims are prepared, the maximum", errRecord, maxRecords)
	}
	if err != nil {
		return Record{}, err
	}
	pods := podsOf(claim)
	record := Record{UID: ref.uid, Namespace: ref.namespace, Name: ref.name, Devices: devices, Prepared: time.Now().UTC()}.withPods(pods)
	if err := record.checkPods(pods); err != nil {
		return Record{}, err
	}
	if err := d.replaceRestored(record); err != nil {
		return Record{}, err
	}
	end := d.cfg.Gate.Cancel
	if _, restored := d.cfg.Gate.Claim(ref.uid); restored { // its containers have its devices until the kubelet unprepares it
		end = func(string) {}
	}
	prepare := func() error {
		if err := d.selectVariants(record.Devices); err != nil {
			return err
		}
		return d.grant(record)
	}
	if err := d.await(ctx, record, prepare); err != nil {
		return Record{}, err
	}
	err = d.selectMPS(devices)
	if err == nil {
		err = d.checkCeiling(ctx, record, pods)
	}
	if err != nil {
		end(ref.uid)
		d.cfg.Changed() // other claims may wait for its devices
		return Record{}, err
	}
	// A crash before the record is written leaves nothing: the kubelet has no response and the containers no devices.
	if err := d.records.save(record); err != nil {
		_ = d.records.remove(ref.uid) // the file may be complete
		end(ref.uid)
		d.cfg.Changed()
		return Record{}, fmt.Errorf("%w; check --state-dir", err)
	}
	d.cfg.Changed()
	return record, d.applySettings(ctx, record, pods)
}

// grant makes the gate grant the devices of a record. The CDI spec contains devices that the gate grants for the first
// time; it may lack those of a prepared claim, and those that the claim only monitors.
func (d *Driver) grant(r Record) error {
	_, prepared := d.cfg.Gate.Claim(r.UID)
	for _, device := range r.Devices {
		if !prepared && !device.Admin {
			continue
		}
		if err := d.cfg.Injectable(device.ID); err != nil {
			return fmt.Errorf("%s: %w", device.ID, err)
		}
	}
	return d.cfg.Gate.Prepare(r.grant())
}

// applySettings applies the settings of GPUs that a claim requires before its containers start. The claim's record must
// be on disk.
func (d *Driver) applySettings(ctx context.Context, r Record, pods []Pod) error {
	ctx, cancel := context.WithTimeoutCause(ctx, settingTimeout, errSettingTimeout)
	defer cancel()
	return errors.Join(d.setTimeSlices(ctx, r), d.limitMemory(ctx, r, pods), d.limitCompute(ctx, r))
}

// selectVariants sets the variants of devices. The error wraps allocator.ErrHeld if a variant is not available yet. A
// missing feature is refused immediately, because only an administrator can add it.
func (d *Driver) selectVariants(devices []Device) (err error) {
	for i := range devices {
		device := &devices[i]
		if device.Features == "" {
			continue
		}
		device.Variants, err = d.cfg.Variants(device.ID, device.Features)
		switch {
		case errors.Is(err, allocator.ErrHeld):
			return err
		case err != nil:
			return fmt.Errorf("%w: request %s: %w", errUnsupported, device.Request, err)
		}
	}
	return nil
}

// prepareAgain ensures that a prepared claim has its devices, and adds the pods for which it has since been reserved.
// If the API server is unavailable, the record suffices.
func (d *Driver) prepareAgain(ctx context.Context, ref claimRef, record Record) (Record, error) {
	reading, cancel := context.WithTimeout(ctx, rereadTimeout)
	claim, err := d.read(reading, ref)
	cancel()
	if errors.Is(err, cluster.ErrNotFound) || errors.Is(err, errReplaced) {
		return Record{}, err
	}
	next, pods := record, record.Pods
	if err == nil {
		devices, err := devicesOf(claim, d.cfg.Driver, d.cfg.Pool)
		if err != nil {
			return Record{}, err
		}
		if !record.sameDevices(devices) {
			return d.prepareReallocated(ctx, ref, record, claim, devices)
		}
		pods = podsOf(claim)
		if err := record.checkPods(pods); err != nil {
			return Record{}, err
		}
		if err := d.checkCeiling(ctx, record, pods); err != nil {
			return Record{}, err
		}
		next = record.withPods(pods)
	}
	if err := d.await(ctx, next, func() error { return d.grant(next) }); err != nil {
		return Record{}, err
	}
	if !slices.Equal(next.Pods, record.Pods) {
		if err := d.records.save(next); err != nil {
			return Record{}, fmt.Errorf("%w; check --state-dir", err)
		}
		d.cfg.Changed()
	}
	return next, d.applySettings(ctx, next, pods)
}

// await calls prepare until the gate grants the devices of a record. It waits for devices that other holders are about
// to release, and for CDI devices that are about to be written.
func (d *Driver) await(ctx context.Context, r Record, prepare func() error) error {
	start := time.Now()
	deadline, poll := time.NewTimer(d.cfg.Wait), time.NewTicker(gatePoll)
	defer deadline.Stop()
	defer poll.Stop()
	for waited := false; ; waited = true {
		if ctx.Err() != nil {
			return context.Cause(ctx) // the kubelet may have unprepared the claim
		}
		changed := d.cfg.Gate.Changed()
		err := prepare()
		if err != nil && !waited {
			d.cfg.Changed() // the gate may have requested a device for the slices
		}
		if !mayBeReleased(err) {
			return err
		}
		if !waited {
			d.log.Info("claim waits for devices", "claim", r.Namespace+"/"+r.Name, "err", err)
		}
		d.cfg.Observer.Waiting(claimRef{r.UID, r.Namespace, r.Name}.outcome(time.Since(start), err))
		select {
		case <-changed:
		case <-poll.C:
		case <-deadline.C:
			return fmt.Errorf("%w%s; waited %s, the kubelet retries within 90s", err, d.describePods(ctx, r), d.cfg.Wait)
		case <-ctx.Done():
			return fmt.Errorf("%w; waited %s: %w", err, time.Since(start).Round(time.Second), context.Cause(ctx))
		}
	}
}

// describePods returns the pods that hold devices of a record through the device plugin, as "; held by pod
// namespace/name"; empty if there are none.
func (d *Driver) describePods(ctx context.Context, r Record) string {
	var pods []string
	for _, device := range r.Devices {
		if !device.Admin {
			pods = append(pods, d.cfg.Pods(ctx, device.ID)...)
		}
	}
	slices.Sort(pods)
	pods = slices.Compact(pods)
	switch len(pods) {
	case 0:
		return ""
	case 1:
		return "; held by pod " + pods[0]
	}
	return "; held by pods " + firstPods(pods)
}

// mayBeReleased reports whether the gate can grant the same devices later, without a change by an administrator.
func mayBeReleased(err error) bool {
	return errors.Is(err, allocator.ErrHeld) && !errors.Is(err, allocator.ErrUnknown) && !errors.Is(err, allocator.ErrUnhealthy)
}
