package agent

import (
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/kubelet"
)

// settleLedger takes the ledger as far as the observation leads, with the gate and the kubelet in step
// with it, and requests the evidence that is missing.
func (l *loop) settleLedger() {
	var todo allocator.Todo
	for {
		l.ledger, todo = l.next()
		l.gate.Advertise(l.ledger)
		if len(todo.Close) == 0 {
			break
		}
		l.gate.Close(todo.Close) // what was granted meanwhile is not closed, and the next pass sees it
	}
	l.advertise()
	if todo.Resend != "" {
		l.plugin(todo.Resend).Resend()
	}
	if todo.Allocatable || todo.Pods || todo.Checkpoint || todo.Runtime {
		replace(l.ask, todo)
	}
	l.again = todo.Again
}

// next returns the ledger that follows, saved. If it cannot be saved, nothing becomes available that the
// next agent would not know of.
func (l *loop) next() (allocator.Ledger, allocator.Todo) {
	now, seen := time.Now(), l.observation()
	next, todo := allocator.Next(l.ledger, seen, now)
	l.gate.Withdraw(next)
	if l.state.save(l.health.Save(), next.Save()) {
		return next, todo
	}
	for i := range seen.Wanted {
		seen.Wanted[i].Durable = false
	}
	return allocator.Next(l.ledger, seen, now)
}

// observation is the latest of each source.
func (l *loop) observation() allocator.Observation {
	o := l.evidence.observation(holdings{plan: l.plan.resources, inv: l.known, ledger: l.ledger})
	o.Wanted = allocator.Wants(l.plan.resources, l.plan.inventory, func(name string) bool { return l.plan.proved[name] })
	o.Present = allocator.PresentIn(l.plan.inventory)
	o.Grants = l.gate.Grants()
	o.Lists = map[string]allocator.List{}
	for _, plugin := range l.plugins {
		if list := plugin.List(); !list.Stream.IsZero() {
			o.Lists[plugin.Resource()] = list
		}
	}
	return o
}

// advertise updates the lists of the kubelet. A resource that has no device any more stays registered:
// then the node has none of it at once, where the kubelet would go on counting those of a plugin that ends
// for minutes.
func (l *loop) advertise() {
	if !l.ledger.MayList() {
		return
	}
	offers := allocator.Offers(l.plan.resources, l.ledger, l.known, cdi.AgentKind)
	for _, plugin := range l.plugins { // one without an entry stays
		if !hasResource(offers, plugin.Resource()) {
			offers = append(offers, &allocator.Resource{Name: plugin.Resource()})
		}
	}
	for _, resource := range offers {
		l.plugin(resource.Name).Update(kubelet.Offer{Resource: resource, PassBy: l.config.CDI.PassBy, With: l.classes.given})
	}
	l.offers = offers
}

func hasResource(resources []*allocator.Resource, name string) bool {
	return slices.ContainsFunc(resources, func(r *allocator.Resource) bool { return r.Name == name })
}
