package agent

import (
	"context"
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/kubelet"
)

// advance brings the ledger up to date with what was last observed, and the gate, the kubelet and all
// views in step with it. It looks at nothing itself.
func (n *node) advance(context.Context) {
	if n.reading == nil {
		return // nothing is known of what is wanted
	}
	n.settleLedger()
	n.publish()
}

// settleLedger takes the ledger as far as the evidence leads, and says what else to ask for.
func (n *node) settleLedger() {
	for {
		n.ledger, n.todo = n.next()
		n.gate.Advertise(n.ledger)
		if len(n.todo.Close) == 0 {
			break
		}
		n.gate.Close(n.todo.Close) // what was granted meanwhile is not closed, and the next pass sees it
	}
	n.offer()
	if plugin := n.plugins[n.todo.Resend]; plugin != nil {
		plugin.Resend()
	}
	if n.todo.Allocatable || n.todo.Pods || n.todo.Checkpoint || n.todo.Runtime {
		replace(n.ask, n.todo)
	}
}

// next returns the ledger that follows, saved. If it cannot be saved, nothing becomes available that the
// next agent would not know of.
func (n *node) next() (allocator.Ledger, allocator.Todo) {
	now, seen := time.Now(), n.observation()
	next, todo := allocator.Next(n.ledger, seen, now)
	n.gate.Withdraw(next)
	if n.state.save(n.health.Save(), next.Save()) {
		return next, todo
	}
	for i := range seen.Wanted {
		seen.Wanted[i].Durable = false
	}
	return allocator.Next(n.ledger, seen, now)
}

// observation is the latest of each source.
func (n *node) observation() allocator.Observation {
	o := n.evidence.observation(n.holdings())
	o.Wanted = allocator.Wants(n.planned, n.inspected, func(name string) bool { return n.proved[name] })
	o.Present = allocator.PresentIn(n.inspected)
	o.Grants = n.gate.Grants()
	o.Lists = map[string]allocator.List{}
	for resource, plugin := range n.plugins {
		if list := plugin.List(); !list.Stream.IsZero() {
			o.Lists[resource] = list
		}
	}
	return o
}

// holdings says what the IDs in evidence stand for.
func (n *node) holdings() holdings { return holdings{plan: n.planned, inv: n.known, ledger: n.ledger} }

// offer tells the kubelet, resource by resource. A resource that has no device any more stays registered:
// then the node has none of it at once, where the kubelet would go on counting those of a plugin that ends
// for minutes.
func (n *node) offer() {
	if !n.ledger.MayList() {
		return
	}
	offers := allocator.Offers(n.planned, n.ledger, n.known, cdi.AgentKind)
	for _, resource := range n.listed { // one without an entry stays
		if !hasResource(offers, resource.Name) {
			offers = append(offers, &allocator.Resource{Name: resource.Name})
		}
	}
	for _, resource := range offers {
		n.plugin(resource.Name).Update(kubelet.Offer{Resource: resource, PassBy: n.settings.CDI.PassBy, With: n.classes.given})
	}
	n.report(offers)
	n.listed = offers
}

func hasResource(resources []*allocator.Resource, name string) bool {
	return slices.ContainsFunc(resources, func(r *allocator.Resource) bool { return r.Name == name })
}

// forgetGone drops GPUs and MIG devices that are gone and that nothing in the ledger is a part of.
func (n *node) forgetGone() {
	tracked := map[string]bool{}
	for e := range n.ledger.Entries() {
		tracked[allocator.DeviceOf(e.ID)] = true
		tracked[e.Part.GPU] = true
	}
	n.known = n.known.Forget(func(uuid string) bool { return tracked[uuid] })
	for uuid := range n.away {
		if _, known := n.known.Find(uuid); !known {
			delete(n.away, uuid)
			n.health.Forget(uuid)
		}
	}
}
