package agent

import (
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/kubelet"
)

// settleLedger advances the ledger until no entry is left to close, updates the gate and the kubelet from it, and
// requests missing evidence.
func (l *loop) settleLedger() {
	var todo allocator.Todo
	for {
		l.ledger, todo = l.next()
		l.gate.Advertise(l.ledger)
		if len(todo.Close) == 0 {
			break
		}
		l.gate.Close(todo.Close) // entries granted meanwhile stay open, and the next pass observes the grants
	}
	l.advertise()
	if todo.Resend != "" {
		l.plugin(todo.Resend).Resend()
	}
	if todo.Allocatable || todo.Pods || todo.Checkpoint || todo.Runtime || todo.Allocations {
		replace(l.requests, todo)
	}
	requested, requestEnds := l.gate.Requested()
	if !slices.Equal(requested, l.plan.requested) {
		requestEnds = time.Now() // the plan is out of date
	}
	l.deadline = earliest(requestEnds, earliest(todo.Again, l.claims.reorderAt()))
}

// earliest returns the earlier of two times; zero means never.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// next computes and saves the next ledger. If it cannot be saved, and the file of the previous one remains, no entry becomes
// available, because the next agent would not track its holders.
func (l *loop) next() (allocator.Ledger, allocator.Todo) {
	observed, now := l.observation(), time.Now() // now is after each grant and ended claim
	next, todo := allocator.Next(l.ledger, observed, now)
	l.gate.Withdraw(next)
	if l.state.save(l.health.Save(), next.Save()) {
		return next, todo
	}
	for i := range observed.Wanted {
		observed.Wanted[i].Ready = false
	}
	return allocator.Next(l.ledger, observed, now)
}

// observation returns the latest state of each source.
func (l *loop) observation() allocator.Observation {
	resolver := partResolver{plan: l.plan.resources, inv: l.known, ledger: l.ledger}
	o := l.evidence.observation(resolver)
	o.Foreign, o.Cordoned = l.foreign(resolver), l.cordons.devices
	unlisted := l.config.Allocation.RespectForeignContainers && !l.running.listed
	o.Wanted = allocator.Wants(l.plan.resources, l.plan.inventory, func(name string) bool { return l.plan.verified[name] && !unlisted })
	for i := range o.Wanted {
		if w := &o.Wanted[i]; w.Part.Share.Class != allocator.Ceiled && l.exclusive(w.Part.GPU) {
			w.Ready = false // its programs would fail until the compute mode is reset
		}
	}
	o.Present = allocator.PresentIn(l.plan.inventory)
	o.Grants = l.gate.Grants()
	l.claims.observe(&o, resolver)
	o.Lists = map[string]allocator.List{}
	for _, plugin := range l.plugins {
		if list := plugin.List(); !list.Stream.IsZero() {
			o.Lists[plugin.Resource()] = list
		}
	}
	return o
}

// advertise updates the device lists of the kubelet and publishes the ResourceSlices. A resource without devices stays
// registered, so that its capacity becomes 0 immediately; the kubelet counts the devices of a stopped plugin for minutes.
func (l *loop) advertise() {
	if !l.ledger.MayList() {
		return
	}
	offers := allocator.Offers(l.plan.resources, l.ledger, l.known, cdi.AgentKind)
	for _, plugin := range l.plugins {
		if !hasResource(offers, plugin.Resource()) {
			offers = append(offers, &allocator.Resource{Name: plugin.Resource()})
		}
	}
	for _, resource := range offers {
		if resource.Sliced() {
			continue
		}
		l.plugin(resource.Name).Update(kubelet.Offer{Resource: resource, PassBy: l.config.CDI.PassBy, ExtraDevices: l.classes.injected, ReplicaKind: cdi.ReplicaKind})
	}
	l.claims.publish(offers, l.plan, l.known, l.config.Config, l.classes.injected)
	l.offers = offers
}

func hasResource(resources []*allocator.Resource, name string) bool {
	return slices.ContainsFunc(resources, func(r *allocator.Resource) bool { return r.Name == name })
}
