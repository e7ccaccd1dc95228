package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
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
	unconfigured gpu.Fault

	// followNode delivers later labels; nil when that runs already, or cannot.
	followNode func(context.Context) error

	labelled labelling     // as last left for keepLabels
	source   driver.Config // how the driver is read

	reading *driver.Reading // the latest; nil until the first
	known   *gpu.Inventory  // all that was read since the start
	away    map[string]bool // known GPUs that the latest reading lacks, by UUID
	health  *health.Tracker
	plugins map[string]*kubelet.Plugin
	modules modules
	classes classes
	xids    xidLog
	state   stateFile

	driverErr, specErr error  // of the latest reconcile; both concern every GPU
	unchecked          string // as last logged, see logUnchecked

	inspected *gpu.Inventory        // known, with the faults of the latest reconcile
	parts     cdi.Parts             // of inspected
	planned   []*allocator.Resource // for inspected
	proved    map[string]bool       // CDI devices that are on disk and can be used, by name

	evidence evidence
	ledger   allocator.Ledger
	gate     *allocator.Gate
	todo     allocator.Todo
	ask      chan allocator.Todo // of watchEvidence
	sent     chan<- struct{}     // gets a value when a list was sent

	listed []*allocator.Resource // as the kubelet was last told; nil before that
}

func newNode(a *Agent, start func(func(context.Context) error), w wakers) *node {
	n := &node{
		agent:     a,
		log:       a.log,
		start:     start,
		known:     &gpu.Inventory{},
		away:      map[string]bool{},
		inspected: &gpu.Inventory{},
		gate:      allocator.NewGate(time.Now),
		ask:       w.ask,
		sent:      w.sent,
		health:    &health.Tracker{},
		plugins:   map[string]*kubelet.Plugin{},
		classes: classes{
			node: a.cfg.Node, dir: a.cfg.CDIDir, log: a.log,
			files: map[config.Class]*cdi.File{}, said: map[config.Class]string{},
		},
		modules: modules{allowed: a.cfg.LoadModules, node: a.cfg.Node, log: a.log, tried: map[string]time.Time{}},
		xids:    newXIDLog(a.log),
		state:   stateFile{dir: a.cfg.StateDir, log: a.log},
	}
	faults, ledger := n.state.load()
	now := time.Now()
	n.health.Restore(faults, now)
	n.ledger = allocator.Start(ledger, a.freshKubelet(), now)
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
	n.plan(n.inspect(ctx))
	n.proved = nil // for what was inspected before
	if n.listed != nil {
		n.settleLedger()
	}
	n.classes.write(n.settings.CDI.Classes)
	if n.specErr = n.writeSpec(); n.specErr != nil {
		n.plan(n.inspected.WithFaults(everywhere(gpu.Fault{Code: gpu.FaultSpec, Message: oneLine(n.specErr)})), n.parts)
	}
	n.settleLedger()
	n.publish()
	n.label()
	n.agent.metrics.Reconciled(n.driverErr, n.specErr)
}

// plan says what is to be offered.
func (n *node) plan(now *gpu.Inventory, parts cdi.Parts) {
	n.inspected, n.parts = now, parts
	if !n.unconfigured.None() {
		now = &gpu.Inventory{} // only what pods may hold is listed
	}
	n.planned = allocator.Plan(now, cdi.AgentKind, n.settings.MIG.Strategy, n.settings.Resources)
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
	if err == nil {
		return n.withOwnFaults(parts), parts
	}
	if missing := (*host.NoDriverError)(nil); !errors.As(err, &missing) && n.reading.Err != nil && !cdi.DriverLoaded(n.agent.cfg.Node) {
		n.modules.load(ctx, "nvidia")
	}
	return n.known.WithFaults(everywhere(driverFault(err))), parts
}

// driverFault returns the fault of all GPUs for a driver that cannot be used. Where one that is
// not there any more was searched for is logged once.
func driverFault(err error) gpu.Fault {
	if missing := (*host.NoDriverError)(nil); errors.As(err, &missing) {
		return gpu.Fault{Code: gpu.FaultDriver, Message: "the driver is gone", Remedy: "install it again"}
	}
	return gpu.Fault{Code: gpu.FaultDriver, Message: oneLine(err)}
}

// everywhere gives every GPU and MIG device the same fault.
func everywhere(fault gpu.Fault) func(uuid string) gpu.Fault {
	return func(string) gpu.Fault { return fault }
}

// withOwnFaults returns all that is known with the faults that concern one GPU or MIG
// device each, and none that concerns the whole node.
func (n *node) withOwnFaults(parts cdi.Parts) *gpu.Inventory {
	return n.known.WithFaults(func(uuid string) gpu.Fault {
		return cmp.Or(n.health.Fault(uuid), parts.Faults[uuid])
	})
}

// writeSpec puts the spec on disk. When no GPU can be given out there is
// nothing to write, and the spec that is there stays for the pods that run.
func (n *node) writeSpec() error {
	if len(n.parts.GPUs) == 0 || !n.unconfigured.None() {
		return nil
	}
	spec, err := cdi.Build(cdi.AgentKind, n.inspected, n.parts, []cdi.Name{cdi.ByUUID})
	if err != nil {
		return err
	}
	written, err := n.agent.spec.Put(spec)
	n.logUnchecked(n.agent.spec.Unchecked())
	if err != nil {
		return err
	}
	n.proved = map[string]bool{}
	for _, d := range spec.Devices {
		n.proved[spec.Kind+"="+d.Name] = true
	}
	if written {
		n.agent.metrics.SpecWritten()
		n.log.Info("CDI spec written", "path", n.agent.spec.Path, "devices", len(n.parts.GPUs))
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

// plugin is that of a resource; it runs.
func (n *node) plugin(resource string) *kubelet.Plugin {
	plugin, running := n.plugins[resource]
	if !running {
		plugin = kubelet.New(kubelet.Config{
			Dir:      n.agent.devicePluginDir(),
			Resource: resource,
			Observer: n.agent.metrics,
			Gate:     n.gate,
			Sent:     func() { notify(n.sent) },
		}, n.log)
		n.plugins[resource] = plugin
		n.start(plugin.Run)
	}
	return plugin
}

// report logs what became of each device since the kubelet was last told, and
// makes Events of it.
func (n *node) report(now []*allocator.Resource) {
	changes := slices.DeleteFunc(allocator.Changes(n.listed, now), func(c allocator.Change) bool {
		return c.Before.State == "" && c.Now.State == allocator.StateWaiting && c.Now.Fault.None() // what was never there is not missed
	})
	n.tell(changes)
	for _, c := range changes {
		n.logChange(c)
	}
}

func (n *node) logChange(c allocator.Change) {
	d := c.Now
	g, _ := n.known.Find(d.GPU)
	log := n.log.With("device", d.ID, "resource", c.Resource, "index", d.Index, "product", g.Product)
	if d.Shared() {
		log = log.With("replicas", len(d.Replicas))
	}
	switch {
	case !d.Fault.None():
		log.Error("device is unhealthy", "code", d.Fault.Code, "reason", d.Fault.Message, "remedy", d.Fault.Remedy)
	case d.State == allocator.StateDraining:
		log.Info("device draining", "reason", d.Why)
	case d.State == allocator.StateReleased:
		log.Info("device released")
	case !d.Healthy():
		log.Info("device waiting", "reason", d.Why)
	case c.Before.State == "":
		log.Info("device is offered")
	case c.Before.Fault.None():
		log.Info("device available")
	default:
		log.Info("device is healthy again")
	}
}

// oneLine writes an error, which may be several, as the one line that tables
// and events have room for.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
