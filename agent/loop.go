package agent

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/runtime"
)

// loop is the reconcile loop with its state, by stage. Only its goroutine touches it.
type loop struct {
	collaborators

	// Observation: the snapshot has the rest of it.
	health   *health.Tracker
	away     map[string]bool // known GPUs that the latest reading lacks, by UUID
	evidence evidence

	ledger allocator.Ledger
	again  time.Time // when it has to be advanced even if nothing happens; zero for never

	snapshot            // as it will be published after this step
	published *snapshot // after the previous one
}

// collaborators are what the loop acts through.
type collaborators struct {
	cfg     Config
	log     *slog.Logger
	xids    xidLog
	modules modules
	state   stateFile
	spec    *cdi.File
	classes classes
	gate    *allocator.Gate

	serve        func(resource string) *kubelet.Plugin // starts the plugin of a resource
	followLabels func()                                // starts the delivery of the Node's labels; nil without an API server
	reread       chan driver.Config                    // for the driver worker
	ask          chan allocator.Todo                   // for watchEvidence
	observe      func(before, now *snapshot)           // passes a snapshot to the views
}

func newLoop(c collaborators, initial *snapshot) *loop {
	l := &loop{
		collaborators: c,
		snapshot:      *initial,
		published:     initial,
		away:          map[string]bool{},
		health:        &health.Tracker{},
	}
	faults, ledger := l.state.load()
	left, err := kubelet.Leftover(l.cfg.devicePluginDir())
	if err != nil {
		l.log.Warn("leftover sockets not looked for, caution at the start takes some seconds", "err", err)
	}
	freshKubelet := !left && err == nil // it has started since the last agent ended
	now := time.Now()
	l.health.Restore(faults, now)
	l.ledger = allocator.Start(ledger, freshKubelet, now)
	return l
}

// triggers wake the loop.
type triggers struct {
	reports chan driver.Report
	spec    chan update[changed]
	config  chan update[changed]
	labels  chan update[map[string]string]
	runtime chan update[runtime.Info]
	answers chan evidence
	sent    chan struct{} // a list, to the kubelet
	granted chan struct{} // a device, by the gate
	reload  <-chan struct{}
	alive   chan struct{} // a probe of the loop
}

func newTriggers(reload <-chan struct{}) triggers {
	return triggers{
		reports: make(chan driver.Report),
		spec:    make(chan update[changed], 1),
		config:  make(chan update[changed], 1),
		labels:  make(chan update[map[string]string], 1),
		runtime: make(chan update[runtime.Info], 1),
		answers: make(chan evidence),
		sent:    make(chan struct{}, 1),
		granted: make(chan struct{}, 1),
		reload:  reload,
		alive:   make(chan struct{}),
	}
}

// run goes from step to step until ctx ends.
func (l *loop) run(ctx context.Context, t triggers) {
	for step := l.await(ctx, t); step != nil; step = l.await(ctx, t) {
		step(ctx)
		l.publish()
	}
}

// publish passes the state of the node to the views.
func (l *loop) publish() {
	now := l.snapshot
	l.observe(l.published, &now)
	l.published = &now
}

// await waits for a trigger that requires a step, and returns the step; nil when ctx has ended.
func (l *loop) await(ctx context.Context, t triggers) (step func(context.Context)) {
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-t.reports:
			if l.receive(r, time.Now()) {
				return l.reconcile
			}
		case answer := <-t.answers:
			l.evidence.merge(answer)
			return l.advance
		case <-t.sent:
			return l.advance
		case <-l.due():
			return l.advance
		case <-l.unlessDue(t.granted):
			l.again = time.Now().Add(grantDelay)
		case u := <-t.spec:
			if u.err == nil && l.spec.Touched() { // and not by ourselves
				return l.reconcile
			}
		case <-t.config: // an error leads to that of reading the file
			return l.reload
		case u := <-t.labels:
			return func(ctx context.Context) { l.relabel(ctx, u) }
		case l.runtime = <-t.runtime:
			return func(context.Context) {} // only views need it
		case <-t.reload:
			return l.reloadAll
		case <-t.alive:
		}
	}
}

// grantDelay is the time from a grant to the step that takes it into account: many grants share one.
const grantDelay = time.Second

// unlessDue returns granted, or nil if there will be a step soon anyway.
func (l *loop) unlessDue(granted <-chan struct{}) <-chan struct{} {
	if !l.again.IsZero() && time.Until(l.again) <= grantDelay {
		return nil
	}
	return granted
}

// reportedGate is the gate with a report of each grant. Neither waits.
type reportedGate struct {
	*allocator.Gate
	granted chan<- struct{}
}

// Allocate implements kubelet.Gate.
func (g reportedGate) Allocate(resource string, ids []string) error {
	err := g.Gate.Allocate(resource, ids)
	if err == nil {
		notify(g.granted)
	}
	return err
}

// due delivers when the ledger has to be advanced even if nothing happens; nil for never.
func (l *loop) due() <-chan time.Time {
	if l.again.IsZero() {
		return nil
	}
	return time.After(time.Until(l.again))
}

// reconcile makes the spec on disk and the kubelet's view what the observation requires. What goes is
// withdrawn before the spec changes; what comes is advertised after it is proved.
func (l *loop) reconcile(ctx context.Context) {
	if l.reading == nil {
		return
	}
	l.prune()
	l.plan = l.inspect(ctx)
	if l.offers != nil {
		l.settleLedger()
	}
	l.classes.write(l.config.CDI.Classes)
	l.plan = l.writeSpec(l.plan)
	l.settleLedger()
}

// advance brings the ledger up to date with the observation, and the gate and the kubelet in step with it.
func (l *loop) advance(context.Context) {
	if l.reading != nil { // else it is not known what is wanted
		l.settleLedger()
	}
}

// prune drops GPUs and MIG devices that are gone and that nothing in the ledger is a part of.
func (l *loop) prune() {
	tracked := map[string]bool{}
	for e := range l.ledger.Entries() {
		tracked[allocator.DeviceOf(e.ID)] = true
		tracked[e.Part.GPU] = true
	}
	l.known = l.known.Forget(func(uuid string) bool { return tracked[uuid] })
	for uuid := range l.away {
		if _, known := l.known.Find(uuid); !known {
			delete(l.away, uuid)
			l.health.Forget(uuid)
		}
	}
}

// plugin returns that of a resource; it runs.
func (l *loop) plugin(resource string) *kubelet.Plugin {
	if i := slices.IndexFunc(l.plugins, func(p *kubelet.Plugin) bool { return p.Resource() == resource }); i >= 0 {
		return l.plugins[i]
	}
	plugin := l.serve(resource)
	l.plugins = append(slices.Clone(l.plugins), plugin) // snapshots have the former
	return plugin
}
