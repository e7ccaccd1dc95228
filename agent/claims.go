package agent

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/status"
)

// claims is the DRA component of the agent. It publishes devices in the ResourceSlices of the node, and runs the DRA
// driver, which prepares the ResourceClaims that these devices are allocated to.
type claims struct {
	driverName string
	poolName   string // the name of the node
	node       host.Root
	kubeletDir string // on the node

	client   *cluster.Client
	pool     *cluster.Pool
	driver   *dra.Driver
	start    func() // starts the driver; later calls do nothing
	gate     *allocator.Gate
	observer *claimObserver

	driverRead chan struct{} // triggers restoreTimeSlices

	published  uint64                      // revision of the pool's latest devices
	placement  allocator.SharePlacement    // of shares
	maxCeiling atomic.Int32                // of shares, in percent
	held       map[string]allocator.Amount // what prepared claims hold of each device, by ID
	heldSince  time.Time                   // when held changed
	ordered    map[string]allocator.Amount // held when the slices were last ordered
	extra      atomic.Pointer[[]string]    // CDI devices that each claim gets in addition to its own
	plan       atomic.Pointer[plan]        // of the latest devices
}

// orderDelay is how long the devices of prepared claims must be unchanged before the slices are reordered. Spreading
// shares has no delay, because the next claim requires the new order.
const orderDelay = 5 * time.Second

// newClaims returns the DRA component of the agent; nil if DRA is disabled. It restores prepared claims, for up to
// restoreTimeout, so it must be called before the gate grants anything. start runs a function in the background.
func (a *Agent) newClaims(ctx context.Context, client *cluster.Client, gate *allocator.Gate, compute *computeLimits, t triggers, start func(run func(context.Context) error)) *claims {
	if a.cfg.DRADriver == "" {
		return nil
	}
	if client == nil {
		a.log.Error("DRA disabled, no API server access")
		return nil
	}
	local, node := a.cfg.Node.KubeletRoot(a.cfg.KubeletDir)
	c := &claims{
		driverName: a.cfg.DRADriver, poolName: a.cfg.NodeName, node: a.cfg.Node, kubeletDir: node, gate: gate,
		driverRead: make(chan struct{}, 1), client: client, pool: cluster.NewPool(client, a.cfg.DRADriver, a.cfg.NodeName, a.log),
	}
	c.observer = &claimObserver{metrics: a.metrics, events: cluster.NewEventRecorder(a.cfg.NodeName, client, claimEventInterval, a.log)}
	c.extra.Store(&[]string{})
	c.plan.Store(&plan{})
	slicer := &driver.TimeSlicer{Node: a.cfg.Node, DriverRoot: a.cfg.DriverRoot, Library: a.cfg.Library, Worker: a.cfg.Worker}
	c.driver = dra.New(dra.Config{
		Driver: a.cfg.DRADriver, Pool: a.cfg.NodeName, CDIKind: cdi.AgentKind, ClaimCDIKind: cdi.ClaimKind, ExtraDevices: func() []string { return *c.extra.Load() },
		Injectable:     func(id string) error { return c.plan.Load().injectable(id) },
		KubeletDevices: c.kubeletDevices,
		Variants: func(id string, f allocator.Features) (allocator.Features, error) {
			return c.plan.Load().claimVariants(id, f)
		},
		KubeletDir: local, KubeletPath: node, StateDir: a.cfg.StateDir,
		Claims: client, Gate: gate, Pods: a.podsOf, Observer: c.observer, SetTimeSlice: slicer.Set, LimitMemory: a.memoryLimits(gate).limitByClaims,
		MPSPercentage: func(id string, amount allocator.Amount, ceiling int) int {
			return compute.percentage(id, amount, ceiling, int(c.maxCeiling.Load()))
		},
		CheckPods: compute.checkPods, LimitCompute: compute.limit, ReleaseCompute: compute.release,
		Changed: func() { notify(t.claims) },
	}, a.log)
	compute.claims = c.driver
	var refusals []string
	for _, r := range dra.Refusals() {
		refusals = append(refusals, string(r))
	}
	a.metrics.EnableDRA(c.pool.Writes, refusals)
	c.restore(ctx, a.log)
	c.start = sync.OnceFunc(func() { start(c.driver.Run) })
	start(func(ctx context.Context) error { c.pool.Run(ctx); return nil })
	start(func(ctx context.Context) error { c.observer.events.Run(ctx); return nil })
	start(func(ctx context.Context) error { c.forward(ctx, t.claims); return nil })
	start(func(ctx context.Context) error { c.watchStale(ctx, a.log); return nil })
	start(func(ctx context.Context) error { c.restoreTimeSlices(ctx); return nil })
	return c
}

// forward notifies the loop of each change of the pool's status.
func (c *claims) forward(ctx context.Context, changed chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.pool.Changes():
			notify(changed)
		}
	}
}

// observe adds the prepared claims and the acknowledged slices to an observation that already has the gate's grants.
func (c *claims) observe(o *allocator.Observation, r partResolver) {
	if c == nil { // without a DRA driver, the kubelet deletes the slices, and no claim can be prepared
		now := time.Now()
		o.Pool, o.Allocations = allocator.Pool{Acknowledged: now}, &allocator.Allocations{Requested: now, Received: now}
		return
	}
	for _, claim := range c.gate.Claims() {
		claim.Parts = make([]allocator.Part, len(claim.Devices))
		for i, id := range claim.Devices {
			claim.Parts[i] = r.device(id)
		}
		o.Claims = append(o.Claims, claim)
	}
	now, acknowledged := time.Now(), c.pool.Status()
	o.Pool = allocator.Pool{Acknowledged: acknowledged.Since, IDs: map[string]bool{}}
	if acknowledged.Revision == c.published && !acknowledged.Since.IsZero() {
		o.Pool.Acknowledged = now
	}
	for _, name := range acknowledged.Devices {
		if id, ok := dra.DeviceID(name); ok {
			o.Pool.IDs[id] = true
		}
	}
}

// allocated returns the names of the claims that devices of the node are allocated to, by device ID; one of them if
// claims share the device. It omits devices that claims only monitor.
func (c *claims) allocated(ctx context.Context) (map[string]string, error) {
	claims, err := c.client.Claims(ctx, c.driverName, c.poolName)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for _, claim := range claims {
		for _, d := range claim.Devices {
			if id, ok := dra.DeviceID(d.Device); ok && !d.AdminAccess {
				names[id] = claim.Namespace + "/" + claim.Name
			}
		}
	}
	return names, nil
}

// publish updates the slices, the features that claims can select, and the health that the kubelet receives. The driver
// starts with the first call. extra are the CDI devices that claims get in addition to their own.
func (c *claims) publish(offers []*allocator.Resource, p *plan, inv *gpu.Inventory, cfg config.Config, extra []string) {
	if c == nil {
		return
	}
	var offered []dra.Offer
	health := []dra.DeviceHealth{}
	held, taints := allocator.HeldByClaims(c.gate.Claims()), !c.pool.Status().DropsTaints()
	for _, r := range offers {
		if !r.Sliced() {
			continue
		}
		for _, d := range r.Devices {
			health = append(health, dra.DeviceHealth{ID: d.ID, Fault: d.Fault})
		}
		offered = append(offered, offersOf(r.Devices, held, taints)...)
	}
	c.extra.Store(&extra)
	if p.verified != nil { // else its spec is about to be written
		c.plan.Store(p)
	}
	c.placement = cfg.Shares.Placement
	c.maxCeiling.Store(int32(cfg.Shares.MaxCeiling))
	c.updatePool(dra.Devices(inv, c.order(inv, offered), cluster.TaintEffect(cfg.Allocation.TaintEffect)))
	c.driver.UpdateHealth(health)
	c.start()
}

// offersOf returns the devices that belong in the slices. Unless the API server stores their taints, it omits the faulty
// ones that the scheduler could allocate: those that no claim holds as a whole. held is the result of
// allocator.HeldByClaims.
func offersOf(devices []allocator.Device, held map[string]allocator.Amount, taints bool) (offers []dra.Offer) {
	for _, d := range devices {
		amount, isHeld := held[d.ID]
		listed := taints || isHeld && amount == allocator.Amount{}
		if d.Healthy() || !d.Fault.None() && d.State != allocator.StateWaiting && listed {
			offers = append(offers, dra.Offer{ID: d.ID, Resource: d.Resource, Fault: d.Fault, Capacity: d.Capacity, Isolation: d.Isolation()})
		}
	}
	return offers
}

// updatePool publishes devices, or withdraws the slices while another process serves a DRA driver of the same name on
// the node: that process would refuse the claims to which the scheduler allocates the devices. Until a check for such a
// process has succeeded, it does nothing.
func (c *claims) updatePool(devices []cluster.Device) {
	switch c.driver.Registration().Conflict {
	case dra.NoConflict:
		c.published = c.pool.Want(devices)
	case dra.ConflictFound:
		c.published = c.pool.Withdraw()
	}
}

// order returns offers in the order in which the scheduler should allocate them. Unless shares are spread, the order
// is stable while claims are being prepared or unprepared, so that a burst of claims does not rewrite the slices each
// time.
func (c *claims) order(inv *gpu.Inventory, offers []dra.Offer) []dra.Offer {
	held, now := allocator.HeldByClaims(c.gate.Claims()), time.Now()
	if c.held == nil || !maps.Equal(held, c.held) {
		c.held, c.heldSince = held, now
	}
	if now.Sub(c.heldSince) >= orderDelay || c.ordered == nil || c.placement == allocator.Spread {
		c.ordered = c.held
	}
	return dra.Order(inv, offers, c.ordered, c.placement)
}

// reorderAt returns when the order is to be updated; zero if it is up to date.
func (c *claims) reorderAt() time.Time {
	if c == nil || maps.Equal(c.held, c.ordered) {
		return time.Time{}
	}
	return c.heldSince.Add(orderDelay)
}

// name returns the name of the DRA driver.
func (c *claims) name() string {
	if c == nil {
		return "DRA" // the ledger may have draining devices of an earlier agent with DRA
	}
	return c.driverName
}

// status returns the status of the driver and the slices; nil if DRA is disabled.
func (c *claims) status() *status.DRA {
	if c == nil {
		return nil
	}
	registration, pool := c.driver.Registration(), c.pool.Status()
	s := &status.DRA{Driver: c.driverName, Registered: registration.Since, Error: registration.Error,
		Slices: status.Slices{Devices: len(pool.Devices), Error: pool.Error, Dropped: pool.Dropped}}
	for _, r := range c.driver.Records() {
		claim := status.Claim{Namespace: r.Namespace, Name: r.Name, UID: r.UID, Prepared: r.Prepared, Damaged: r.Damaged}
		for _, d := range r.Devices {
			claim.Devices = append(claim.Devices, d.ID)
		}
		for _, p := range r.Pods {
			claim.Pods = append(claim.Pods, p.Name)
		}
		s.Claims = append(s.Claims, claim)
	}
	s.Claims = append(s.Claims, c.unrecorded()...)
	s.Waiting, s.Refused = c.observer.awaiting(), c.observer.refused()
	for _, foreign := range pool.Foreign {
		s.Slices.Foreign = append(s.Slices.Foreign, foreign.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(pool.Refused)) {
		s.Slices.Error = cmp.Or(s.Slices.Error, "the API server refuses "+name+": "+pool.Refused[name])
	}
	return s
}

// unrecorded returns the claims that were restored from the kubelet's checkpoint and not prepared again since.
func (c *claims) unrecorded() (unrecorded []status.Claim) {
	recorded := map[string]bool{}
	for _, r := range c.driver.Records() {
		recorded[r.UID] = true
	}
	for _, claim := range c.gate.Claims() {
		if !recorded[claim.UID] {
			unrecorded = append(unrecorded, status.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, Devices: slices.Concat(claim.Devices, claim.Admin)})
		}
	}
	return unrecorded
}

// The errors of a config that requires DRA while it is disabled.
var (
	errNoDRADriver = errors.New("mode dra requires the DRA driver; set dra.enabled of the chart, or --dra-driver-name")
	errNoAPIServer = errors.New("mode dra requires API server access; run the agent in a pod with a service account, and set --node-name")
)
