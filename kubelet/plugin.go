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
)

// Config says which resource a Plugin offers, and where.
type Config struct {
	Dir      string // the kubelet's device-plugins directory; it may come and go
	Resource string // "nvidia.com/gpu"
	Gate     Gate

	Observer Observer // may be nil
	Sent     func()   // called after each list that was sent; may be nil, must not block
}

// Gate grants devices of a resource, all of them or none. It decides alone whether they
// may be allocated. It must not block: the kubelet waits meanwhile.
type Gate interface {
	Allocate(resource string, ids []string) error
}

// Plugin offers one resource to the kubelet. Update and Run may be called
// from different goroutines.
type Plugin struct {
	cfg    Config
	log    *slog.Logger
	update sync.Mutex // of those who replace latest
	latest atomic.Pointer[snapshot]
	stands atomic.Pointer[Registration]
	lists  lists
	socket string // the path of the latest; only Run uses it

	// streamWithin is how long the kubelet may take from a registration until
	// it asks for the devices.
	streamWithin time.Duration
}

// New returns a Plugin that does nothing until Run is called.
func New(cfg Config, log *slog.Logger) *Plugin {
	cfg.Dir = filepath.Clean(cfg.Dir) // as watches spell it
	if cfg.Observer == nil {
		cfg.Observer = nobody{}
	}
	if cfg.Sent == nil {
		cfg.Sent = func() {}
	}
	p := &Plugin{cfg: cfg, log: log.With("resource", cfg.Resource), streamWithin: 10 * time.Second}
	p.latest.Store(&snapshot{Offer: Offer{Resource: &allocator.Resource{Name: cfg.Resource}}, superseded: make(chan struct{})})
	p.stands.Store(&Registration{Trouble: "not tried yet"})
	return p
}

// Registration is where a resource stands with the kubelet.
type Registration struct {
	Since   time.Time // of the registration that holds; zero when none does
	Trouble string    // why none does
}

// Registration says where the resource stands with the kubelet now. It never
// waits.
func (p *Plugin) Registration() Registration { return *p.stands.Load() }

// Resource is what the plugin offers.
func (p *Plugin) Resource() string { return p.cfg.Resource }

// List returns what was sent on the ListAndWatch stream; the zero List if there is none. Of
// several streams the newest counts.
func (p *Plugin) List() allocator.List { return p.lists.newest() }

// Update makes o what is offered from now on. It never waits: a kubelet that
// is slow to take one Offer misses those before the latest.
func (p *Plugin) Update(o Offer) {
	p.update.Lock()
	defer p.update.Unlock()
	next := newSnapshot(o)
	next.resends = p.latest.Load().resends
	close(p.latest.Swap(next).superseded)
}

// Resend sends the latest list to the kubelet once more, although it knows it: the kubelet
// writes its checkpoint for each list.
func (p *Plugin) Resend() {
	p.update.Lock()
	defer p.update.Unlock()
	next := *p.latest.Load()
	next.resends++
	next.superseded = make(chan struct{})
	close(p.latest.Swap(&next).superseded)
}

// Run serves the resource and keeps it registered until ctx ends. Before the first
// Update the kubelet receives no list, not even an empty one. Its socket stays in
// the directory, see Leftover. Run returns an error only when the Config cannot work.
func (p *Plugin) Run(ctx context.Context) error {
	if path := p.socketPath(); len(path) > maxSocketPath {
		return fmt.Errorf("offering %s: the socket path %s has %d bytes, of which Linux takes %d: use a shorter kubelet directory",
			p.cfg.Resource, path, len(path), maxSocketPath)
	}
	changed := make(chan struct{}, 1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.watch(ctx, changed) })
	g.Go(func() error { return p.keepRegistered(ctx, changed) })
	return g.Wait()
}

// kubeletSocketName is the kubelet's socket in the device-plugins directory.
const kubeletSocketName = "kubelet.sock"

func (p *Plugin) kubeletSocket() string { return filepath.Join(p.cfg.Dir, kubeletSocketName) }
