package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu/driver"
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

func (c Config) devicePluginDir() string { return filepath.Join(c.KubeletDir, "device-plugins") }

func (c Config) podResources() string { return c.Node.PodResources(c.KubeletDir) }

// Agent serves a node's GPUs to its kubelet.
type Agent struct {
	cfg  Config
	log  *slog.Logger
	spec *cdi.File

	metrics *metrics.Metrics
	events  *cluster.Events // nil: no API server receives them
	relabel chan *snapshot  // for keepLabels

	// What status and probes are answered from. Nobody changes a value that is stored.
	latest      atomic.Pointer[snapshot]         // by the loop, after each step
	telemetry   atomic.Pointer[driver.Telemetry] // by followDriver
	predecessor atomic.Pointer[string]           // which agent this one waits for; nil: none
	holders     holders
}

// New returns an agent that does nothing until it runs.
func New(cfg Config, log *slog.Logger) *Agent {
	a := &Agent{cfg: cfg, log: log, spec: cdi.AgentFile(cfg.CDIDir, cfg.Node), relabel: make(chan *snapshot, 1)}
	a.latest.Store(newSnapshot())
	a.telemetry.Store(&driver.Telemetry{})
	a.holders.kubelet.Socket = cfg.podResources()
	a.metrics = metrics.New(a.status, knownXIDs())
	return a
}

// Run serves until ctx ends. The specs stay on disk, since pods outlive the
// agent. Each delivery on reload reads the config and the driver again; a
// change of the config file needs none. The error is for what only a restart with other
// flags can fix.
func (a *Agent) Run(ctx context.Context, reload <-chan struct{}) error {
	defer a.holders.close()
	group, ctx := errgroup.WithContext(ctx)
	start := func(run func(context.Context) error) { group.Go(func() error { return run(ctx) }) }
	beside := func(run func(context.Context)) { group.Go(func() error { run(ctx); return nil }) }
	t := newTriggers(reload)
	if a.cfg.Listen != "" {
		start(func(ctx context.Context) error { return a.server(t.alive).Run(ctx, a.log) })
	}
	a.awaitPredecessor(ctx, t.alive)
	client, noClient := a.findCluster()
	c := a.collaborators(start, t)
	if client != nil {
		c.followLabels = sync.OnceFunc(func() {
			beside(follow(a.watchLabels(client), t.labels, a.log, "node labels not received, sections that select by label stay unchanged; check the role in deploy/"))
		})
		a.events = cluster.NewEvents(a.cfg.NodeName, client, a.log)
		beside(a.events.Run)
	}
	l := newLoop(c, a.latest.Load())
	// Asked while the driver starts: without it an agent that finds no saved state offers nothing.
	replace(l.ask, allocator.Todo{Checkpoint: true, Runtime: true})
	if noClient != nil {
		l.labels.err = noClient
	}
	l.configure(ctx, t.labels)
	l.publish()
	source := l.driverConfig()
	beside(func(ctx context.Context) { a.followDriver(ctx, source, l.reread, t.reports) })
	beside(func(ctx context.Context) { a.watchEvidence(ctx, l.ask, t.answers) })
	// allocator.Plan always has this resource. Registering takes time, and so does
	// the driver's first answer: both at once.
	l.plugin(allocator.GPUResource)
	beside(follow(a.watchSpec, t.spec, a.log, "CDI directory is not watched, will retry"))
	if a.cfg.ConfigFile != "" {
		beside(follow(a.watchConfig, t.config, a.log, "config is not watched, will retry"))
	}
	beside(afterStart(follow(a.watchRuntime, t.runtime, a.log, "no container runtime answers yet: is its socket below --host-root?")))
	beside(func(ctx context.Context) { a.keepLabels(ctx, client) })
	beside(afterStart(reduceMemory))
	beside(func(ctx context.Context) { l.run(ctx, t) })
	return group.Wait()
}

// collaborators are those of the loop. start runs something beside it.
func (a *Agent) collaborators(start func(run func(context.Context) error), t triggers) collaborators {
	gate := allocator.NewGate(time.Now)
	return collaborators{
		cfg:     a.cfg,
		log:     a.log,
		xids:    newXIDLog(a.log),
		modules: modules{allowed: a.cfg.LoadModules, node: a.cfg.Node, log: a.log, tried: map[string]time.Time{}},
		state:   stateFile{dir: a.cfg.StateDir, log: a.log},
		spec:    a.spec,
		classes: newClasses(a.cfg, a.log),
		gate:    gate,
		serve: func(resource string) *kubelet.Plugin {
			plugin := kubelet.New(kubelet.Config{
				Dir:      a.cfg.devicePluginDir(),
				Resource: resource,
				Observer: a.metrics,
				Gate:     reportedGate{gate, t.granted},
				Sent:     func() { notify(t.sent) },
			}, a.log)
			start(plugin.Run)
			return plugin
		},
		reread:  make(chan driver.Config, 1),
		ask:     make(chan allocator.Todo, 1),
		observe: a.observe,
	}
}

// observe passes a snapshot to the views.
func (a *Agent) observe(before, now *snapshot) {
	a.latest.Store(now)
	a.reportChanges(before, now)
	if now.plan == before.plan {
		return // no reconcile
	}
	replace(a.relabel, now)
	a.metrics.Reconciled(now.plan.driverErr, now.plan.specErr)
	if now.plan.written {
		a.metrics.SpecWritten()
	}
}

// awaitPredecessor waits for the end of another agent of the node, as in a rollout. Until then this one is
// ready, so that the rollout goes on, and touches nothing.
func (a *Agent) awaitPredecessor(ctx context.Context, alive <-chan struct{}) {
	over := make(chan error, 1)
	go func() { over <- kubelet.AwaitPredecessor(ctx, a.cfg.devicePluginDir(), a.waitFor()) }()
	for {
		select {
		case <-alive:
		case err := <-over:
			if err != nil && ctx.Err() == nil {
				a.log.Warn("not known whether another agent serves this node", "err", err)
			}
			a.predecessor.Store(nil)
			return
		}
	}
}

// waitFor returns what reports the socket of the agent that is waited for.
func (a *Agent) waitFor() func(socket string) {
	const message = "another gpucdi agent serves this node, waiting for its end"
	return func(socket string) {
		if why := message + ": " + socket; a.predecessor.Swap(&why) == nil {
			a.log.Info(message, "socket", socket)
			return
		}
		a.log.Warn(message+"; remove one of the two", "socket", socket)
	}
}

// followDriver delivers the reports of the driver worker. What only the views need is theirs at once.
func (a *Agent) followDriver(ctx context.Context, first driver.Config, later <-chan driver.Config, reports chan<- driver.Report) {
	driver.Run(ctx, first, later, func(r driver.Report) {
		if t, is := r.(driver.Telemetry); is {
			a.telemetry.Store(&t)
			return
		}
		select {
		case reports <- r:
		case <-ctx.Done():
			return
		}
		if x, is := r.(driver.XID); is { // its GPU is published: metrics drop those that are not
			a.metrics.XID(x.GPU, x.Code, max(1, x.Times))
		}
	})
}

// startTime is how long a start takes at most, where nothing is wrong.
const startTime = time.Second

// afterStart postpones what would delay the first list and can wait for it.
func afterStart(run func(context.Context)) func(context.Context) {
	return func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-time.After(startTime):
			run(ctx)
		}
	}
}

// reduceMemory limits the memory of an agent that has started, which has little work
// for months: what the start took goes back to the node, where it would be garbage
// for minutes, and from then on the heap grows by half, not to twice its size,
// until the next collection.
func reduceMemory(context.Context) {
	debug.SetGCPercent(50)
	debug.FreeOSMemory()
}
