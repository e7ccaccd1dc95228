package agent

import (
	"slices"
	"sync"
	"time"

	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/metrics"
	"github.com/gpucdi/gpucdi/status"
)

// maxRefusals bounds the refusals in the status.
const maxRefusals = 32

// claimObserver counts the kubelet's calls to prepare and unprepare claims in the metrics, and keeps the waiting
// claims and the latest refusals for the status. It is safe for concurrent use.
type claimObserver struct {
	metrics *metrics.Metrics

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
		i = len(o.waiting)
		o.waiting = append(o.waiting, status.WaitingClaim{Namespace: outcome.Namespace, Name: outcome.Name, UID: outcome.UID, Since: time.Now()})
	}
	o.waiting[i].Message = gpu.OneLine(outcome.Err)
}

// Prepared implements dra.Observer.
func (o *claimObserver) Prepared(outcome dra.Outcome) {
	o.metrics.Prepared(outcome.Took, string(outcome.Refusal))
	o.record(outcome)
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
