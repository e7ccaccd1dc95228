package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/internal/sockets"
)

// Config configures a Plugin.
type Config struct {
	Dir      string // the kubelet's device-plugins directory; may be missing or replaced at any time
	Resource string // such as "nvidia.com/gpu"
	Gate     Gate

	// PreStart is called before each start of a container with a device of a resource that is MemoryLimited (see
	// allocator.Resource). An error prevents the start. The kubelet waits up to 30 s, and does not start other containers
	// of the pod meanwhile. May be nil if the resource is never MemoryLimited.
	PreStart func(ctx context.Context, resource string, pod Pod) error

	// Limiting is set if the resource may be MemoryLimited. A registration before the first Update then requires calls of
	// PreStart, since a container may start whose devices an earlier agent allocated.
	Limiting bool

	PodResources string // socket of the pod resources API, to check what the kubelet advertises; empty: no checks

	Observer Observer // may be nil
	Sent     func()   // called after each ListAndWatch message, perhaps concurrently; may be nil, must not block
}

// Gate grants devices of a resource, all of them or none. It alone decides whether they may be allocated. It must
// not block: the kubelet waits for it. limiting is set if Config.PreStart will be called before a container starts.
type Gate interface {
	Allocate(resource string, ids []string, limiting bool) error
}

// Plugin is the device plugin of one resource. Its methods are safe for concurrent use; Run must be called once.
type Plugin struct {
	cfg          Config
	log          *slog.Logger
	update       sync.Mutex // serializes writes to latest
	latest       atomic.Pointer[snapshot]
	registration atomic.Pointer[Registration]
	lists        sentLists
	socket       string // path of the latest socket; only used by Run

	// streamTimeout bounds the time from a registration until the kubelet opens a ListAndWatch stream. Kubelet 1.36 can
	// accept a registration and never open one.
	streamTimeout time.Duration

	checkInterval time.Duration // between two calls of healthCheck.periodic
}

// New returns a Plugin that does nothing until Run is called.
func New(cfg Config, log *slog.Logger) *Plugin {
	cfg.Dir = filepath.Clean(cfg.Dir) // fsnotify reports clean paths
	if cfg.Observer == nil {
		cfg.Observer = noObserver{}
	}
	if cfg.Sent == nil {
		cfg.Sent = func() {}
	}
	p := &Plugin{cfg: cfg, log: log.With("resource", cfg.Resource), streamTimeout: 10 * time.Second, checkInterval: 15 * time.Second}
	empty := Offer{Resource: &allocator.Resource{Name: cfg.Resource}}
	p.latest.Store(&snapshot{Offer: empty, preStart: cfg.Limiting, superseded: make(chan struct{})})
	p.registration.Store(&Registration{Error: "not attempted yet"})
	return p
}

// Registration is the state of a resource's registration with the kubelet.
type Registration struct {
	Since time.Time // when the resource was registered; zero if it is not registered
	Error string    // why it is not registered; empty if it is
}

// Registration returns the current state of the registration. It never blocks.
func (p *Plugin) Registration() Registration { return *p.registration.Load() }

// Resource returns the resource name.
func (p *Plugin) Resource() string { return p.cfg.Resource }

// List returns when the newest open ListAndWatch stream was opened and last written to; the zero List if none is
// open.
func (p *Plugin) List() allocator.List { return p.lists.newest() }

// Update replaces the Offer. It never blocks: a kubelet that reads slowly skips all but the latest Offer.
func (p *Plugin) Update(o Offer) {
	p.update.Lock()
	defer p.update.Unlock()
	next := newSnapshot(o)
	next.resends = p.latest.Load().resends
	close(p.latest.Swap(next).superseded)
}

// Resend sends the latest list again, unchanged, which makes the kubelet write its checkpoint.
func (p *Plugin) Resend() {
	p.update.Lock()
	defer p.update.Unlock()
	next := *p.latest.Load()
	next.resends++
	next.superseded = make(chan struct{})
	close(p.latest.Swap(&next).superseded)
}

// Run serves the resource and keeps it registered until ctx ends. Before the first Update it sends no list, not
// even an empty one. The socket is left in the directory, see HasAgentSocket. Run returns an error only if the
// Config is unusable.
func (p *Plugin) Run(ctx context.Context) error {
	if path := p.socketPath(); len(path) > sockets.MaxPath {
		return fmt.Errorf("serving %s: socket path %s has %d bytes, more than the maximum of %d; use a shorter --kubelet-dir",
			p.cfg.Resource, path, len(path), sockets.MaxPath)
	}
	changed := make(chan struct{}, 1)
	g, ctx := errgroup.WithContext(ctx)
	watcher := sockets.Watcher{Dir: p.cfg.Dir, Relevant: p.isRelevant, Changed: changed, Log: p.log}
	g.Go(func() error { watcher.Run(ctx); return nil })
	g.Go(func() error { return p.keepRegistered(ctx, changed) })
	return g.Wait()
}

// kubeletSocketName is the name of the kubelet's registration socket in the device-plugins directory.
const kubeletSocketName = "kubelet.sock"

func (p *Plugin) kubeletSocket() string { return filepath.Join(p.cfg.Dir, kubeletSocketName) }

// isRelevant reports whether a file is the kubelet's socket or one of this plugin. Others are ignored, above all the
// kubelet's checkpoint, which changes with every pod.
func (p *Plugin) isRelevant(name string) bool {
	return name == kubeletSocketName || p.isOwnSocketName(name)
}
