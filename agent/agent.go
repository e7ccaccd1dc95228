package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/apiserver"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/config"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/metrics"
)

// Config says where the agent finds the node's parts.
type Config struct {
	Node       host.Root
	DriverRoot string // the node's path; empty: the known places
	Library    string // the node's path of NVML; empty: found in the driver root
	KubeletDir string
	CDIDir     string
	StateDir   string // where faults are kept over restarts; empty: nowhere
	NFDDir     string // where Node Feature Discovery looks for files with labels

	// LoadModules lets the agent run the node's modprobe.
	LoadModules bool

	Version  string // of this program
	NodeName string // Kubernetes' name of the node; may be empty
	Listen   string // where status and metrics are served; empty: nowhere

	// Worker is the program that talks to the driver; see driver.Config.
	Worker string

	// ConfigFile is the NodeConfig file; empty: all keys have their defaults.
	ConfigFile string
}

// specRetry is the time between two tries to watch the CDI directory.
const specRetry = time.Second

// Agent serves a node's GPUs to its kubelet.
type Agent struct {
	cfg  Config
	log  *slog.Logger
	spec *cdi.File
	view view

	metrics *metrics.Metrics
	events  *apiserver.Events // nil: nobody is told
	labels  chan labelling    // how the loop wants the node to be labelled
}

// New returns an agent that does nothing until it runs.
func New(cfg Config, log *slog.Logger) *Agent {
	a := &Agent{cfg: cfg, log: log, spec: cdi.AgentFile(cfg.CDIDir, cfg.Node), labels: make(chan labelling, 1)}
	a.view.init(cfg)
	a.metrics = metrics.New(a.status, knownXIDs())
	return a
}

// Run serves until ctx ends. The specs stay on disk, since pods outlive the
// agent. Each delivery on reload reads the config and the driver again; a
// change of the config file needs none. The error is for what only a restart with other
// flags can fix.
func (a *Agent) Run(ctx context.Context, reload <-chan struct{}) error {
	group, ctx := errgroup.WithContext(ctx)
	start := func(run func(context.Context) error) { group.Go(func() error { return run(ctx) }) }
	beside := func(run func(context.Context)) { group.Go(func() error { run(ctx); return nil }) }
	w := newWakers(reload)
	if a.cfg.Listen != "" {
		start(func(ctx context.Context) error { return a.server(w.alive).Run(ctx, a.log) })
	}
	a.awaitPredecessor(ctx, w.alive)
	client := a.findCluster()
	node := newNode(a, start, w)
	// Asked while the driver starts: without it an agent that finds no saved state offers nothing.
	replace(w.ask, allocator.Todo{Checkpoint: true, Runtime: true})
	if client != nil {
		a.events = apiserver.NewEvents(a.cfg.NodeName, client, a.log)
		beside(a.events.Run)
	}
	node.settle(ctx, client, w.labels)
	// allocator.Plan always has this resource. Registering takes time, and so does
	// the driver's first answer: both at once.
	node.plugin(allocator.GPUResource)
	source := a.source(node.settings)
	node.source = source
	beside(func(ctx context.Context) { a.followDriver(ctx, source, w) })
	beside(func(ctx context.Context) { a.watchSpec(ctx, w.specChanged) })
	beside(func(ctx context.Context) { a.watchConfig(ctx, w.fileChanged) })
	beside(func(ctx context.Context) { a.watchEvidence(ctx, w.ask, w.answers) })
	beside(func(ctx context.Context) { a.keepLabels(ctx, client) })
	beside(a.watchRuntime)
	beside(beSmall)
	beside(func(ctx context.Context) {
		for next := node.await(ctx, w); next != nil; next = node.await(ctx, w) {
			next(ctx)
		}
	})
	return group.Wait()
}

// awaitPredecessor waits for the end of another agent of the node, as in a rollout. Until then this one is
// ready, so that the rollout goes on, and touches nothing.
func (a *Agent) awaitPredecessor(ctx context.Context, alive <-chan struct{}) {
	over := make(chan error, 1)
	go func() { over <- kubelet.AwaitPredecessor(ctx, a.devicePluginDir(), a.waitFor()) }()
	for {
		select {
		case <-alive:
		case err := <-over:
			if err != nil && ctx.Err() == nil {
				a.log.Warn("not known whether another agent serves this node", "err", err)
			}
			a.view.predecessor.Store(nil)
			return
		}
	}
}

// waitFor returns what reports the socket of the agent that is waited for.
func (a *Agent) waitFor() func(socket string) {
	const message = "another gpucdi agent serves this node, waiting for its end"
	return func(socket string) {
		if why := message + ": " + socket; a.view.predecessor.Swap(&why) == nil {
			a.log.Info(message, "socket", socket)
			return
		}
		a.log.Warn(message+"; remove one of the two", "socket", socket)
	}
}

// wakers are what wakes the reconcile loop, and what it wakes in turn.
type wakers struct {
	reports     chan driver.Report
	specChanged chan struct{}
	fileChanged chan struct{}          // the config's
	labels      chan map[string]string // the node's
	answers     chan evidence
	sent        chan struct{} // a list, to the kubelet
	reload      <-chan struct{}
	alive       chan struct{} // somebody asks whether the loop goes round

	reread chan driver.Config
	ask    chan allocator.Todo
}

func newWakers(reload <-chan struct{}) wakers {
	return wakers{
		reports:     make(chan driver.Report),
		specChanged: make(chan struct{}, 1),
		fileChanged: make(chan struct{}, 1),
		labels:      make(chan map[string]string, 1),
		answers:     make(chan evidence),
		sent:        make(chan struct{}, 1),
		reload:      reload,
		alive:       make(chan struct{}),
		reread:      make(chan driver.Config, 1),
		ask:         make(chan allocator.Todo, 1),
	}
}

// await waits until there is something to do, and returns what; nil when ctx has ended.
func (n *node) await(ctx context.Context, w wakers) func(context.Context) {
	for {
		work := false
		select {
		case <-ctx.Done():
			return nil
		case r := <-w.reports:
			work = n.hear(r, time.Now())
		case answer := <-w.answers:
			n.evidence.merge(answer)
			return n.advance
		case <-w.sent:
			return n.advance
		case <-n.again():
			return n.advance
		case <-w.specChanged:
			work = n.agent.spec.Touched() // and not by ourselves
		case <-w.alive:
		case <-w.fileChanged:
			work = n.reload() && n.resume(w)
		case labels := <-w.labels:
			work = n.relabel(labels) && n.resume(w)
		case <-w.reload:
			n.reload()
			n.log.Info("the driver is read again")
			work = n.reread(w)
		}
		if work {
			return n.reconcile
		}
	}
}

// again tells when the ledger has to be brought up to date even if nothing happens; nil for never.
func (n *node) again() <-chan time.Time {
	if n.todo.Again.IsZero() {
		return nil
	}
	return time.After(time.Until(n.todo.Again))
}

// resume goes on with settings that have changed. The driver is read again only if
// they concern it: XIDs that come meanwhile are lost.
func (n *node) resume(w wakers) bool {
	return n.source == n.agent.source(n.settings) || n.reread(w)
}

// reread lets the driver be read again, as the settings now say.
func (n *node) reread(w wakers) bool {
	n.source = n.agent.source(n.settings)
	replace(w.reread, n.source)
	return true
}

// followDriver passes on what the driver says.
func (a *Agent) followDriver(ctx context.Context, source driver.Config, w wakers) {
	driver.Run(ctx, source, w.reread, func(r driver.Report) {
		select {
		case w.reports <- r:
		case <-ctx.Done():
		}
	})
}

// watchSpec leaves word in changed when somebody may have changed the spec. A
// directory that cannot be watched, since it cannot be made, is tried again:
// until then every probe of the GPUs leads to a look at the spec.
func (a *Agent) watchSpec(ctx context.Context, changed chan struct{}) {
	for said := ""; ctx.Err() == nil; {
		err := a.spec.Watch(ctx, func() { replace(changed, struct{}{}) })
		if err == nil {
			return
		}
		if err.Error() != said {
			said = err.Error()
			a.log.Error("trying again to watch the CDI directory", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(specRetry):
		}
	}
}

func (a *Agent) source(settings config.Config) driver.Config {
	return driver.Config{
		Node:       a.cfg.Node,
		DriverRoot: a.cfg.DriverRoot,
		Library:    a.cfg.Library,
		Interval:   settings.Health.ProbeInterval,
		CallWithin: settings.Health.CallTimeout,
		Worker:     a.cfg.Worker,
	}
}

func (a *Agent) devicePluginDir() string { return filepath.Join(a.cfg.KubeletDir, "device-plugins") }

// freshKubelet reports whether the kubelet has started since the last agent ended.
func (a *Agent) freshKubelet() bool {
	left, err := kubelet.Leftover(a.devicePluginDir())
	if err != nil {
		a.log.Warn("leftover sockets not looked for, caution at the start takes some seconds", "err", err)
	}
	return !left && err == nil
}

func (a *Agent) podResources() string { return a.cfg.Node.PodResources(a.cfg.KubeletDir) }

// settled is how long a start takes at most, where nothing is wrong.
const settled = time.Second

// beSmall holds the memory of an agent down that is at work, which is little work
// for months: what the start took goes back to the node, where it would be garbage
// for minutes, and from then on the heap grows by half, not to twice its size,
// until the next collection.
func beSmall(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(settled):
		debug.SetGCPercent(50)
		debug.FreeOSMemory()
	}
}

// notify leaves word in a channel with room for one.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// replace makes value the one that the reader of a channel with room for one
// finds next. Only one goroutine may send.
func replace[T any](c chan T, value T) {
	select {
	case <-c:
	default:
	}
	c <- value
}
