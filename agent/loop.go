package agent

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/runtime"
)

// loop is the reconcile loop and its state, by stage. Only its goroutine uses it.
type loop struct {
	collaborators

	// Parts of the observation; the others are in the snapshot.
	health    *health.Tracker
	missing   map[string]bool      // known GPUs that the latest inventory lacks, by UUID
	mpsFaults map[string]gpu.Fault // see triggers.mps
	evidence  evidence

	ledger   allocator.Ledger
	deadline time.Time // when to advance the ledger without a trigger; zero: never

	snapshot            // working copy, published after each step
	published *snapshot // the latest that was published
}

// collaborators are the components that the loop calls to apply its decisions.
type collaborators struct {
	cfg      Config
	log      *slog.Logger
	xids     xidLog
	modules  modules
	state    stateFile
	spec     *cdi.File
	variants variants
	classes  classes
	gate     *allocator.Gate

	startPlugin  func(resource string, limiting bool) *kubelet.Plugin // starts the device plugin of a resource; see kubelet.Config.Limiting
	exclusive    func(uuid string) bool                               // whether the compute mode of a GPU is still changed for MPS
	followLabels func()                                               // starts watching the Node's labels; nil: no API server access
	reread       chan driver.Config                                   // to the driver worker
	requests     chan allocator.Todo                                  // to watchEvidence
	observe      func(before, now *snapshot)                          // updates the views
}

func newLoop(c collaborators, initial *snapshot) *loop {
	l := &loop{
		collaborators: c,
		snapshot:      *initial,
		published:     initial,
		missing:       map[string]bool{},
		health:        &health.Tracker{},
	}
	faults, ledger := l.state.load()
	leftover, err := kubelet.HasAgentSocket(l.cfg.devicePluginDir())
	if err != nil {
		l.log.Warn("leftover plugin sockets not listed, assuming the kubelet has not restarted", "err", err)
	}
	freshKubelet := !leftover && err == nil // the kubelet has restarted since the last agent exited
	now := time.Now()
	l.health.Restore(faults, now)
	l.ledger = allocator.Start(ledger, freshKubelet, now)
	l.gate.Advertise(l.ledger)     // provides the parts of running pods for memory limits; grants nothing yet
	l.cordons.read(l.cfg.StateDir) // before anything is advertised
	return l
}

// triggers are the events that the loop waits for.
type triggers struct {
	reports  chan driver.Report
	spec     chan update[changed]
	config   chan update[changed]
	labels   chan update[map[string]string]
	runtime  chan update[runtime.Info]
	running  chan update[running]
	cordons  chan update[cordons]
	evidence chan evidence
	sent     chan struct{}             // a ListAndWatch response was sent
	granted  chan struct{}             // the gate granted a device of a resource
	claims   chan struct{}             // the claim records, dra.Registration.Conflict or the status of the pool changed
	mps      chan map[string]gpu.Fault // faults of GPUs that pods share through MPS, by UUID
	reload   <-chan struct{}
	liveness chan struct{} // the liveness probe; receiving proves that the loop is alive
}

func newTriggers(reload <-chan struct{}) triggers {
	return triggers{
		reports:  make(chan driver.Report),
		spec:     make(chan update[changed], 1),
		config:   make(chan update[changed], 1),
		labels:   make(chan update[map[string]string], 1),
		runtime:  make(chan update[runtime.Info], 1),
		running:  make(chan update[running], 1),
		cordons:  make(chan update[cordons], 1),
		evidence: make(chan evidence),
		sent:     make(chan struct{}, 1),
		granted:  make(chan struct{}, 1),
		claims:   make(chan struct{}, 1),
		mps:      make(chan map[string]gpu.Fault, 1),
		reload:   reload,
		liveness: make(chan struct{}),
	}
}

// run executes steps until ctx ends.
func (l *loop) run(ctx context.Context, t triggers) {
	for step := l.await(ctx, t); step != nil; step = l.await(ctx, t) {
		step(ctx)
		l.publish()
	}
}

// publish passes a snapshot to the views.
func (l *loop) publish() {
	now := l.snapshot
	l.observe(l.published, &now)
	l.published = &now
}

// await waits for a trigger that requires a step and returns that step; nil when ctx has ended.
func (l *loop) await(ctx context.Context, t triggers) (step func(context.Context)) {
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-t.reports:
			if l.receive(r, time.Now()) {
				return l.reconcile
			}
		case newer := <-t.evidence:
			l.evidence.merge(newer)
			return l.advance
		case <-t.sent:
			return l.advance
		case <-t.claims:
			return l.advance
		case <-l.due():
			return l.advance
		case <-l.unlessDue(t.granted):
			l.deadline = time.Now().Add(grantDelay)
		case u := <-t.spec:
			if u.err == nil && l.specsStale() { // false after the agent's own write
				return l.reconcile
			}
		case <-l.variants.started:
			l.variants.claims = true
			if l.config.Policy().UsesDRA() {
				return l.reconcile
			}
		case <-t.config: // loading the file reports the cause of a failed watch
			return l.reload
		case u := <-t.labels:
			return func(ctx context.Context) { l.relabel(ctx, u) }
		case l.runtime = <-t.runtime:
			return func(context.Context) {} // only views use it
		case u := <-t.running:
			l.running = u.value
			l.claims.join(l.running.prepared, l.running.preparedBegan)
			return func(ctx context.Context) {
				l.audit()
				l.advance(ctx)
			}
		case u := <-t.cordons:
			l.cordons.update(u)
			return l.advance
		case l.mpsFaults = <-t.mps:
			return l.reconcile
		case <-t.reload:
			return l.reloadAll
		case <-t.liveness:
		}
	}
}

// grantDelay is the time between a grant and the step that processes it: a burst of grants shares one step.
const grantDelay = time.Second

// unlessDue returns granted, or nil if a step is due within grantDelay.
func (l *loop) unlessDue(granted <-chan struct{}) <-chan struct{} {
	if !l.deadline.IsZero() && time.Until(l.deadline) <= grantDelay {
		return nil
	}
	return granted
}

// notifyingGate notifies the loop of each grant, without blocking.
type notifyingGate struct {
	*allocator.Gate
	granted chan<- struct{}
}

// Allocate implements kubelet.Gate.
func (g notifyingGate) Allocate(resource string, ids []string, limiting bool) error {
	err := g.Gate.Allocate(resource, ids, limiting)
	if err == nil {
		notify(g.granted)
	}
	return err
}

// due returns a channel that delivers at the deadline; nil if there is none.
func (l *loop) due() <-chan time.Time {
	if l.deadline.IsZero() {
		return nil
	}
	return time.After(time.Until(l.deadline))
}

// reconcile brings the CDI spec and the advertised devices in line with the observation. Devices are withdrawn
// before the spec changes, and advertised after it is verified.
func (l *loop) reconcile(ctx context.Context) {
	if l.driver == nil {
		return
	}
	l.prune()
	l.plan = l.inspect(ctx)
	l.audit()
	if l.offers != nil {
		l.settleLedger()
	}
	l.classes.write(l.config.CDI.Classes)
	l.plan = l.writeSpec(l.plan)
	l.settleLedger()
}

// advance updates the ledger from the observation, and the gate and the kubelet from the ledger.
func (l *loop) advance(ctx context.Context) {
	if l.driver == nil { // before the first driver snapshot, the wanted devices are unknown
		return
	}
	if requested, _ := l.gate.Requested(); !slices.Equal(requested, l.plan.requested) {
		l.reconcile(ctx)
		return
	}
	l.settleLedger()
}

// prune drops missing GPUs and MIG devices that no ledger entry refers to.
func (l *loop) prune() {
	tracked := map[string]bool{}
	for e := range l.ledger.Entries() {
		tracked[allocator.DeviceOf(e.ID)] = true
		tracked[e.Part.GPU] = true
	}
	l.known = l.known.Prune(func(uuid string) bool { return tracked[uuid] })
	for uuid := range l.missing {
		if _, known := l.known.Find(uuid); !known {
			delete(l.missing, uuid)
			l.health.Remove(uuid)
		}
	}
}

// plugin returns the running device plugin of a resource, and starts it if needed.
func (l *loop) plugin(resource string) *kubelet.Plugin {
	if i := slices.IndexFunc(l.plugins, func(p *kubelet.Plugin) bool { return p.Resource() == resource }); i >= 0 {
		return l.plugins[i]
	}
	plugin := l.startPlugin(resource, l.limitsMemory(resource))
	l.plugins = append(slices.Clone(l.plugins), plugin) // published snapshots share the old slice
	return plugin
}
