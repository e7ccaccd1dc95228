package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/internal/config"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/kubelet"
)

// node is the agent's state. Only the goroutine of the reconcile loop touches
// it.
type node struct {
	agent    *Agent
	log      *slog.Logger
	start    func(run func(context.Context) error) // runs beside the loop, until the agent ends
	labels   map[string]string                     // the node's; nil until they are known, and where nobody asks for them
	settings config.Config                         // what the file says for a node with these labels

	// unconfigured is why no settings are in effect: the config was invalid at the start,
	// and there was no last known good one. Only what pods may hold is listed then.
	unconfigured error

	// followNode delivers later labels; nil when that runs already, or cannot.
	followNode func(context.Context) error

	labelled labelling     // as last left for keepLabels
	source   driver.Config // how the driver is read

	reading *driver.Reading // the latest; nil until the first
	known   *gpu.Inventory  // all that was read since the start
	away    map[string]bool // known GPUs that the latest reading lacks, by UUID
	offered *gpu.Inventory  // as the kubelet was last told
	health  *health.Tracker
	plugins map[string]*kubelet.Plugin
	modules modules
	classes classes
	xids    xidLog
	state   stateFile

	driverErr, specErr error  // of the latest reconcile; both concern every GPU
	unchecked          string // as last logged, see logUnchecked

	listed []*allocator.Resource // as the kubelet was last told
	left   map[listing]time.Time // since when listed devices have left their resource
	free   map[listing]bool      // those that no pod holds, until the next reconcile

	heldKnown bool // the kubelet has told what pods hold since the start
}

func newNode(a *Agent, start func(func(context.Context) error)) *node {
	n := &node{
		agent:   a,
		log:     a.log,
		start:   start,
		known:   &gpu.Inventory{},
		away:    map[string]bool{},
		offered: &gpu.Inventory{},
		health:  &health.Tracker{},
		plugins: map[string]*kubelet.Plugin{},
		classes: classes{
			node: a.cfg.Node, dir: a.cfg.CDIDir, log: a.log,
			files: map[config.Class]*cdi.File{}, said: map[config.Class]string{},
		},
		modules: modules{allowed: a.cfg.LoadModules, node: a.cfg.Node, log: a.log, tried: map[string]time.Time{}},
		free:    map[listing]bool{},
		xids:    newXIDLog(a.log),
		state:   stateFile{dir: a.cfg.StateDir, log: a.log},
	}
	n.health.Restore(n.state.load(), time.Now())
	return n
}

// reconcile makes the spec on disk and the kubelet's view what the latest
// reading says they should be. What goes is withdrawn before the spec changes;
// what comes is offered after it is proved.
func (n *node) reconcile(ctx context.Context) {
	if n.reading == nil {
		return
	}
	n.forgetGone()
	n.state.save(n.health.Save())
	now, parts := n.inspect(ctx)
	after := n.plan(now)
	n.offer(allocator.Withdraw(n.listed, after))
	n.classes.write(n.settings.CDI.Classes)
	if n.specErr = n.writeSpec(now, parts); n.specErr != nil {
		now = now.WithFaults(func(string) string { return oneLine(n.specErr) })
		after = n.plan(now)
	}
	n.offer(after)
	n.report(after)
	n.offered, n.listed = now, after
	n.free = map[listing]bool{}
	n.noteLeft(time.Now())
	n.publish(parts)
	n.label(parts)
	n.agent.metrics.Reconciled(n.driverErr, n.specErr)
}

// plan says what is to be listed.
func (n *node) plan(now *gpu.Inventory) []*allocator.Resource {
	if n.unconfigured != nil {
		nothing := allocator.Plan(&gpu.Inventory{}, cdi.AgentKind, config.MIGNone, nil)
		return allocator.WithFault(allocator.Retain(n.listed, nothing, n.mayBeHeld), oneLine(n.unconfigured))
	}
	planned := allocator.Plan(now, cdi.AgentKind, n.settings.MIG.Strategy, n.settings.Resources)
	return allocator.Retain(n.listed, planned, n.mayBeHeld)
}

// inspect returns all that is known with the faults that the driver and the host
// give it, and the parts of their spec.
func (n *node) inspect(ctx context.Context) (*gpu.Inventory, cdi.Parts) {
	err := n.reading.Err
	var parts cdi.Parts
	if err == nil && len(n.known.GPUs) > 0 {
		parts, err = n.look(ctx)
	}
	n.driverErr = err
	if missing := (*host.NoDriverError)(nil); errors.As(err, &missing) {
		err = errors.New(noDriver)
	} else if n.reading.Err != nil && !cdi.DriverLoaded(n.agent.cfg.Node) {
		n.modules.load(ctx, "nvidia")
	}
	if err != nil {
		return n.known.WithFaults(func(string) string { return oneLine(err) }), parts
	}
	return n.withOwnFaults(parts), parts
}

// withOwnFaults returns all that is known with the faults that concern one GPU or MIG
// device each, and none that concerns the whole node.
func (n *node) withOwnFaults(parts cdi.Parts) *gpu.Inventory {
	return n.known.WithFaults(func(uuid string) string {
		return cmp.Or(n.health.Health(uuid).Reason, parts.Faults[uuid])
	})
}

// writeSpec puts the spec on disk. When no GPU can be given out there is
// nothing to write, and the spec that is there stays for the pods that run.
func (n *node) writeSpec(now *gpu.Inventory, parts cdi.Parts) error {
	if len(parts.GPUs) == 0 || n.unconfigured != nil {
		return nil
	}
	spec, err := cdi.Build(cdi.AgentKind, now, parts, []cdi.Name{cdi.ByUUID})
	if err != nil {
		return err
	}
	written, err := n.agent.spec.Put(spec)
	n.logUnchecked(n.agent.spec.Unchecked())
	if err != nil {
		return err
	}
	if written {
		n.agent.metrics.SpecWritten()
		n.log.Info("CDI spec written", "path", n.agent.spec.Path, "devices", len(parts.GPUs))
	}
	return nil
}

// logUnchecked logs once which other CDI specs may conflict with ours.
func (n *node) logUnchecked(err error) {
	now := trouble(err)
	if now != "" && now != n.unchecked {
		n.log.Warn("other CDI specs are not checked for conflicts", "reason", now)
	}
	n.unchecked = now
}

// offer tells the kubelet, resource by resource. A resource that has no device
// any more stays registered: then the node has none of it at once, where the
// kubelet would go on counting those of a plugin that ends for minutes.
func (n *node) offer(resources []*allocator.Resource) {
	for _, resource := range resources {
		n.plugin(resource.Name).Update(kubelet.Offer{Resource: resource, PassBy: n.settings.CDI.PassBy, With: n.classes.given})
	}
}

// plugin is that of a resource; it runs.
func (n *node) plugin(resource string) *kubelet.Plugin {
	plugin, running := n.plugins[resource]
	if !running {
		plugin = kubelet.New(kubelet.Config{
			Dir:      n.agent.devicePluginDir(),
			Resource: resource,
			Observer: n.agent.metrics,
		}, n.log)
		n.plugins[resource] = plugin
		n.start(plugin.Run)
	}
	return plugin
}

// report logs what became of each device since the kubelet was last told, and
// makes Events of it.
func (n *node) report(now []*allocator.Resource) {
	changes := allocator.Changes(n.listed, now)
	n.tell(changes)
	for _, c := range changes {
		g, _ := n.known.Find(c.Device.GPU)
		log := n.log.With("device", c.Device.ID, "resource", c.Resource, "index", c.Device.Index, "product", g.Product)
		if c.Device.Shared() {
			log = log.With("replicas", len(c.Device.Replicas))
		}
		switch {
		case c.Device.Draining():
			log.Info("device draining", "reason", c.Device.Fault)
		case c.Drained && c.Device.Fault == "":
			log.Info("device available")
		case c.Device.Fault != "":
			log.Error("device is unhealthy", "reason", c.Device.Fault, "heals", n.verdict(c.Device).Heals)
		case c.New:
			log.Info("device is offered")
		default:
			log.Info("device is healthy again")
		}
	}
}

// verdict is the health of a device, or of its GPU where that is what is wrong.
func (n *node) verdict(d allocator.Device) health.Health {
	if own := n.health.Health(d.ID); own.Reason != "" {
		return own
	}
	return n.health.Health(d.GPU)
}

// noDriver is the fault of a GPU whose driver is not there any more; where one
// was looked for stands in the log once.
const noDriver = "the driver is gone; install it again"

// oneLine writes an error, which may be several, as the one line that tables
// and events have room for.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
