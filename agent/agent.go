package agent

import (
	"context"
	"fmt"
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
	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/metrics"
	"github.com/gpucdi/gpucdi/runtime/nri"
)

// Config configures an Agent.
type Config struct {
	Node       host.Root
	DriverRoot string // path on the node; empty: search the known driver roots
	Library    string // path of libnvidia-ml.so.1 on the node; empty: search the driver root
	KubeletDir string // the kubelet's root directory, as seen by this process
	CDIDir     string // for CDI specs, as seen by this process
	StateDir   string // for state that survives agent restarts, as seen by this process; empty disables it
	NFDDir     string // features.d directory of Node Feature Discovery, as seen by this process; empty disables it

	// LoadModules allows running the node's modprobe.
	LoadModules bool

	Version  string // agent version
	NodeName string // name of the Node object; empty disables API server access

	// Spread is the interval over which the agents of a cluster distribute non-urgent requests to the API server;
	// 0: cluster.DefaultSpread.
	Spread time.Duration

	// DRADriver is the name of the DRA driver, "gpu.nvidia.com"; empty disables DRA.
	DRADriver string

	Listen string // address for status, metrics and probes; empty disables it

	// Worker is the driver worker executable; see driver.Config.
	Worker string

	// ConfigFile is the path of the NodeConfig file; empty: defaults.
	ConfigFile string
}

func (c Config) devicePluginDir() string { return filepath.Join(c.KubeletDir, "device-plugins") }

// kubeletRoot returns the node's root and the kubelet's root directory on the node.
func (c Config) kubeletRoot() (host.Root, string) {
	_, node := c.Node.KubeletRoot(c.KubeletDir)
	return c.Node, node
}

func (c Config) podResources() string { return c.Node.PodResources(c.KubeletDir) }

// Agent advertises a node's GPUs to its kubelet.
type Agent struct {
	cfg  Config
	log  *slog.Logger
	spec *cdi.File

	metrics       *metrics.Metrics
	events        *cluster.EventRecorder // nil without API server access
	labelsChanged chan *snapshot         // triggers syncLabels
	marksChanged  chan *snapshot         // triggers syncMarks
	nriChanged    chan config.NRI        // triggers syncNRI

	// Read by status and probes. Stored values are immutable.
	latest      atomic.Pointer[snapshot]         // stored by the loop after each step
	telemetry   atomic.Pointer[driver.Telemetry] // stored by followDriver
	predecessor atomic.Pointer[string]           // message about the agent that must exit first; nil: none
	nri         atomic.Pointer[nri.Plugin]       // nil while the config does not enable it
	holders     holders
	used        usedMemory

	// settings sends commands to the driver worker.
	settings driver.Settings
}

// New returns an agent. Run starts it.
func New(cfg Config, log *slog.Logger) *Agent {
	a := &Agent{
		cfg:           cfg,
		log:           log,
		spec:          cdi.AgentFile(cfg.CDIDir, cfg.Node),
		labelsChanged: make(chan *snapshot, 1),
		marksChanged:  make(chan *snapshot, 1),
		nriChanged:    make(chan config.NRI, 1),
	}
	a.latest.Store(newSnapshot())
	a.telemetry.Store(&driver.Telemetry{})
	a.holders.kubelet.Socket = cfg.podResources()
	a.metrics = metrics.New(a.status, knownXIDs())
	return a
}

// Run advertises the node's GPUs until ctx ends. CDI specs stay on disk because pods outlive the agent.
// A value on reload rereads the config and the driver; changes of the config file are detected without it.
// Run returns an error only if the agent cannot work with this Config, or requires a restart of its container.
func (a *Agent) Run(ctx context.Context, reload <-chan struct{}) error {
	defer a.holders.close()
	group, ctx := errgroup.WithContext(ctx)
	start := func(run func(context.Context) error) { group.Go(func() error { return run(ctx) }) }
	background := func(run func(context.Context)) { group.Go(func() error { run(ctx); return nil }) }
	t := newTriggers(reload)
	if a.cfg.Listen != "" {
		start(func(ctx context.Context) error { return a.server(t.liveness).Run(ctx, a.log) })
	}
	release := a.awaitPredecessor(ctx, t.liveness)
	defer release()
	if ctx.Err() != nil { // the predecessor may still serve the node
		return group.Wait()
	}
	client, clientErr := a.newClusterClient()
	gate := allocator.NewGate(time.Now)
	compute := a.newComputeLimits(client, gate)
	c := a.collaborators(gate, compute, start, t)
	var nodeLabels *cluster.NodeLabels
	if client != nil {
		c.followLabels = sync.OnceFunc(func() {
			log := a.log.With("remedy", "allow the service account to watch nodes, as the role in deploy/ does")
			background(follow(a.watchLabels(client), t.labels, log, "node label watch failed, label-selected config unchanged"))
		})
		nodeLabels = a.startViews(client, background)
	}
	l := newLoop(c, a.latest.Load())
	l.claims = a.newClaims(ctx, client, gate, compute, t, start)
	// Without saved state, nothing is advertised before this evidence arrives, so collect it while the driver starts.
	replace(l.requests, allocator.Todo{Checkpoint: true, Runtime: true})
	if clientErr != nil {
		l.labels.err = clientErr
	}
	l.configure(ctx, t.labels)
	l.publish()
	source := l.driverConfig()
	background(func(ctx context.Context) { a.followDriver(ctx, source, l.reread, t.reports) })
	background(func(ctx context.Context) { a.watchEvidence(ctx, l.claims, l.requests, t.evidence) })
	// allocator.Plan always has this resource. Register it while the driver is read for the first time.
	l.plugin(allocator.GPUResource)
	a.watchFiles(t, start, background)
	a.watchRuntimes(l.config.Allocation.RespectForeignContainers, t, background)
	background(func(ctx context.Context) { a.syncLabels(ctx, nodeLabels) })
	background(func(ctx context.Context) { a.syncMarks(ctx, client) })
	a.startLimits(l, compute, t, background)
	background(afterStart(reduceMemory))
	background(func(ctx context.Context) { l.run(ctx, t) })
	return group.Wait()
}

// startLimits starts the goroutines that restore the limits of running pods and run the NRI plugin.
func (a *Agent) startLimits(l *loop, compute *computeLimits, t triggers, background func(run func(context.Context))) {
	limits := a.memoryLimits(l.gate)
	background(func(ctx context.Context) { limits.maintain(ctx, l.claims) })
	background(func(ctx context.Context) { a.syncNRI(ctx, limits) })
	background(func(ctx context.Context) {
		compute.maintain(ctx, func(faults map[string]gpu.Fault) { replace(t.mps, faults) })
	})
}

// watchFiles starts the check of the mounts and the sources that watch files on the node.
func (a *Agent) watchFiles(t triggers, start func(run func(context.Context) error), background func(run func(context.Context))) {
	start(a.watchMounts)
	background(follow(a.watchSpec, t.spec, a.log, "CDI directory watch failed, will retry"))
	if a.cfg.ConfigFile != "" {
		background(follow(a.watchConfig, t.config, a.log, "config watch failed, will retry"))
	}
	if a.cfg.StateDir != "" {
		background(follow(a.watchCordons, t.cordons, a.log, "cordons not watched, keeping the last ones"))
	}
}

// watchRuntimes starts the sources of the container runtimes. With respectForeign, devices wait for the list of running
// containers; otherwise the list is postponed.
func (a *Agent) watchRuntimes(respectForeign bool, t triggers, background func(run func(context.Context))) {
	log := a.log.With("remedy", "mount the socket of the container runtime below --host-root")
	background(afterStart(follow(a.watchRuntime, t.runtime, log, "container runtime not detected, will retry")))
	listRunning := follow(a.watchContainers, t.running, a.log, "running containers not listed, will retry")
	if !respectForeign {
		listRunning = afterStart(listRunning)
	}
	background(listRunning)
}

// collaborators returns the collaborators of the loop. start runs a device plugin in the background.
func (a *Agent) collaborators(gate *allocator.Gate, compute *computeLimits, start func(run func(context.Context) error), t triggers) collaborators {
	limits := a.memoryLimits(gate)
	return collaborators{
		cfg:      a.cfg,
		log:      a.log,
		xids:     newXIDLog(a.log),
		modules:  modules{allowed: a.cfg.LoadModules, node: a.cfg.Node, log: a.log, tried: map[string]time.Time{}},
		state:    stateFile{dir: a.cfg.StateDir, log: a.log},
		spec:     a.spec,
		variants: newVariants(a.cfg, a.log),
		classes:  newClasses(a.cfg, a.log),
		gate:     gate,
		startPlugin: func(resource string, limiting bool) *kubelet.Plugin {
			plugin := kubelet.New(kubelet.Config{
				Dir:      a.cfg.devicePluginDir(),
				Resource: resource,
				Observer: a.metrics,
				Gate:     notifyingGate{gate, t.granted},
				Sent:     func() { notify(t.sent) },
				PreStart: func(ctx context.Context, resource string, pod kubelet.Pod) error {
					ctx, cancel := context.WithTimeoutCause(ctx, preStartTimeout, fmt.Errorf("no response within %s", preStartTimeout))
					defer cancel()
					if err := limits.preStart(ctx, resource, pod); err != nil {
						return err
					}
					return compute.preStart(ctx, resource, pod)
				},
				Limiting: limiting,

				PodResources: a.cfg.podResources(),
			}, a.log)
			start(plugin.Run)
			return plugin
		},
		reread:    make(chan driver.Config, 1),
		requests:  make(chan allocator.Todo, 1),
		observe:   a.observe,
		exclusive: compute.changed.has,
	}
}

// observe updates the views.
func (a *Agent) observe(before, now *snapshot) {
	a.latest.Store(now)
	a.reportChanges(before, now)
	replace(a.marksChanged, now)
	if now.claims != nil && now.driver != before.driver && now.driver.Err == nil {
		notify(now.claims.driverRead)
	}
	if now.config.NRI != before.config.NRI {
		replace(a.nriChanged, now.config.NRI)
	}
	if now.plan == before.plan {
		return // not a reconcile
	}
	replace(a.labelsChanged, now)
	a.metrics.Reconciled(now.plan.driverErr, now.plan.specErr)
	if now.plan.written {
		a.metrics.SpecWritten()
	}
}

// awaitPredecessor waits until no other agent serves the node; during a rollout, the old one still does. Meanwhile this
// agent changes nothing, and reports ready so that the rollout proceeds. With a state directory, later agents wait
// until release is called.
func (a *Agent) awaitPredecessor(ctx context.Context, liveness <-chan struct{}) (release func()) {
	done := make(chan func(), 1)
	go func() { done <- a.takeOver(ctx) }()
	for {
		select {
		case <-liveness:
		case release := <-done:
			a.predecessor.Store(nil)
			return release
		}
	}
}

// takeOver waits for the lock of the state directory, and for the sockets of agents with another state directory to
// close.
func (a *Agent) takeOver(ctx context.Context) (release func()) {
	report := a.reportPredecessor()
	release = func() {}
	if a.cfg.StateDir != "" {
		unlock, err := lockState(ctx, a.cfg.StateDir, report)
		switch {
		case err == nil:
			release = unlock
		case ctx.Err() == nil:
			a.log.Warn("state directory not locked, continuing", "err", err)
		}
	}
	if err := kubelet.AwaitPredecessor(ctx, a.cfg.devicePluginDir(), report); err != nil && ctx.Err() == nil {
		a.log.Warn("check for another agent failed, continuing", "err", err)
	}
	return release
}

// reportPredecessor returns a callback that reports the locked file or the socket of the other agent. The first report
// is not a warning: during a rollout the other agent is about to exit.
func (a *Agent) reportPredecessor() func(path string) {
	const message = "another gpucdi agent serves this node, waiting for it to exit"
	return func(path string) {
		if status := message + ": " + path; a.predecessor.Swap(&status) == nil {
			a.log.Info(message, "path", path)
			return
		}
		a.log.Warn(message, "path", path, "remedy", "remove one of the two agents")
	}
}

// followDriver delivers the reports of the driver worker. Telemetry bypasses the loop, because only views read it.
func (a *Agent) followDriver(ctx context.Context, first driver.Config, later <-chan driver.Config, reports chan<- driver.Report) {
	driver.Run(ctx, first, &a.settings, later, func(r driver.Report) {
		if t, is := r.(driver.Telemetry); is {
			a.telemetry.Store(&t)
			return
		}
		select {
		case reports <- r:
		case <-ctx.Done():
			return
		}
		// Metrics drop XIDs of unknown GPUs. By now the loop has published the GPU.
		if x, is := r.(driver.XID); is {
			a.metrics.XID(x.GPU, x.Code, max(1, x.Times))
		}
	})
}

// startDelay is longer than the usual time from the start of the agent to the first ListAndWatch response.
const startDelay = time.Second

// afterStart postpones work that would delay the first ListAndWatch response.
func afterStart(run func(context.Context)) func(context.Context) {
	return func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-time.After(startDelay):
			run(ctx)
		}
	}
}

// reduceMemory returns to the operating system the memory that only the start required, and lets the heap grow by 50 %
// instead of 100 % between collections: after its start the agent is mostly idle.
func reduceMemory(context.Context) {
	debug.SetGCPercent(50)
	debug.FreeOSMemory()
}
