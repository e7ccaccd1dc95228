package agent

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/metrics"
	"github.com/gpucdi/gpucdi/status"
)

// maxRefusals bounds the refusals in the status.
const maxRefusals = 32

// claimObserver counts the kubelet's calls to prepare and unprepare claims in the metrics, records Events of claims, and
// keeps the waiting claims and the latest refusals for the status. It is safe for concurrent use.
type claimObserver struct {
	metrics *metrics.Metrics
	events  *cluster.EventRecorder

	mu       sync.Mutex
	waiting  []status.WaitingClaim // the longest first
	refusals []status.Refusal      // one for each claim, the oldest first
}

// Registered implements dra.Observer.
func (o *claimObserver) Registered() {}

// Waiting implements dra.Observer.
func (o *claimObserver) Waiting(outcome dra.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = slices.Clone(o.waiting)
	i := slices.IndexFunc(o.waiting, func(w status.WaitingClaim) bool { return w.UID == outcome.UID })
	if i < 0 {
		o.metrics.Waited()
		i = len(o.waiting)
		o.waiting = append(o.waiting, status.WaitingClaim{Namespace: outcome.Namespace, Name: outcome.Name, UID: outcome.UID, Since: time.Now()})
	}
	o.waiting[i].Message = gpu.OneLine(outcome.Err)
}

// Prepared implements dra.Observer.
func (o *claimObserver) Prepared(outcome dra.Outcome) {
	o.metrics.Prepared(outcome.Took, string(outcome.Refusal))
	event := o.event(outcome)
	o.record(outcome)
	if event.Reason != "" {
		o.events.Record(event)
	}
}

// event returns the Event of a call to prepare a claim; the zero Event if there is none. The kubelet repeats a refused
// call, so a refusal with the same message as the last one has none, nor has a call that was canceled.
func (o *claimObserver) event(outcome dra.Outcome) cluster.Event {
	claim := cluster.ClaimRef{Namespace: outcome.Namespace, Name: outcome.Name, UID: outcome.UID}
	repeated := func(r status.Refusal) bool { return r.UID == outcome.UID && r.Message == gpu.OneLine(outcome.Err) }
	switch message := notEnforced(outcome.Devices); {
	case message != "":
		return cluster.Event{Type: cluster.Normal, Reason: coresNotEnforced, Message: message, Claim: claim}
	case outcome.Err != nil && outcome.Refusal != dra.RefusedCanceled && !slices.ContainsFunc(o.refused(), repeated):
		return cluster.Event{Type: cluster.Warning, Reason: claimNotPrepared, Message: gpu.OneLine(outcome.Err), Claim: claim}
	}
	return cluster.Event{}
}

// notEnforced returns a message that names the devices of which a claim has a part, but no limit of the compute time;
// empty if there are none.
func notEnforced(devices []dra.Device) string {
	var cores []string
	for _, d := range devices {
		if !d.Admin && d.Amount.Partial() && d.MPSPercentage == 0 {
			cores = append(cores, fmt.Sprintf("%d cores of %s", d.Amount.Cores, d.ID))
		}
	}
	if len(cores) == 0 {
		return ""
	}
	return strings.Join(cores, ", ") + " booked, but not enforced: the programs on the GPU take turns (compute level timeslice); " +
		"to enforce cores, set shares.compute: ceiling in the config"
}

// Unprepared implements dra.Observer.
func (o *claimObserver) Unprepared(outcome dra.Outcome) {
	o.metrics.Unprepared(outcome.Took, string(outcome.Refusal))
	o.record(outcome)
}

// record replaces the refusal of the claim, or removes it after a success. The claim does not wait any more.
func (o *claimObserver) record(outcome dra.Outcome) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = slices.DeleteFunc(slices.Clone(o.waiting), func(w status.WaitingClaim) bool { return w.UID == outcome.UID })
	o.refusals = slices.DeleteFunc(slices.Clone(o.refusals), func(r status.Refusal) bool { return r.UID == outcome.UID })
	if outcome.Err == nil {
		return
	}
	o.refusals = append(o.refusals, status.Refusal{Namespace: outcome.Namespace, Name: outcome.Name, UID: outcome.UID,
		Reason: string(outcome.Refusal), Message: gpu.OneLine(outcome.Err), At: time.Now()})
	o.refusals = o.refusals[max(0, len(o.refusals)-maxRefusals):]
}

// refused returns the refusals. The slice must not be modified.
func (o *claimObserver) refused() []status.Refusal {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.refusals
}

// awaiting returns the waiting claims. The slice must not be modified.
func (o *claimObserver) awaiting() []status.WaitingClaim {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.waiting
}
