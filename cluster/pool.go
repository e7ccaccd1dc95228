package cluster

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Pool publishes the devices of a node in ResourceSlices. The slices form one pool with the name of the node. Their
// owner is the Node, so they are deleted with it.
//
// Slices that others have changed or deleted are restored. The kubelet deletes all slices of its node each time it
// starts.
type Pool struct {
	driver, node string
	client       *Client
	log          *slog.Logger

	mu     sync.Mutex
	wanted wantedDevices

	wake    chan struct{} // capacity 1: wanted has changed
	changes chan struct{} // capacity 1: status has changed
	status  atomic.Pointer[PoolStatus]
	writes  atomic.Uint64
	limit   *rate.Limiter // of watches, and of writes that restore slices

	state poolState // only used by Run
}

// wantedDevices are the devices to publish.
type wantedDevices struct {
	devices   []Device
	withdrawn bool   // no slices at all
	revision  uint64 // 0 before the first Want or Withdraw
}

// PoolStatus is the state that the API server has acknowledged. It must not be modified.
type PoolStatus struct {
	// Revision is the latest revision that is completely published, except for Refused devices and Dropped fields.
	Revision uint64
	// Devices are the names of the devices in the slices of the pool. A device that a Want has removed is withdrawn
	// once Revision is at least the revision of that Want and Devices does not contain it.
	Devices []string
	// Since is the time of the response that last changed Revision or Devices. It is zero while the state in the API
	// server is unknown.
	Since time.Time

	// Error is the last error of listing, watching or writing the slices. It is cleared once the latest Want is published.
	Error string
	// Refused are devices that the API server does not accept, with the reasons. They are not published.
	Refused map[string]string
	// Dropped are fields that the API server does not store, since their feature gate is disabled.
	Dropped []string
	// Foreign are up to maxForeign slices of the same driver and node that gpucdi did not write. They are never
	// modified. A scheduler may ignore the pool while they exist.
	Foreign []ForeignSlice
}

// ForeignSlice is a slice of another writer.
type ForeignSlice struct {
	Name, Pool string
	Manager    string // field manager that created it, usually the name of a program
	Generation int64  // of its pool; a scheduler uses only the slices of the latest generation
}

// NewPool returns the pool of a node. It publishes devices while Run runs.
func NewPool(client *Client, driver, node string, log *slog.Logger) *Pool {
	p := &Pool{
		driver: driver, node: node,
		client:  client,
		log:     log,
		wake:    make(chan struct{}, 1),
		changes: make(chan struct{}, 1),
		limit:   rate.NewLimiter(rate.Every(eventInterval), eventBurst),
		state:   newPoolState(),
	}
	p.status.Store(&PoolStatus{})
	return p
}

// Want replaces the devices to publish, in the order in which the scheduler considers them, and returns their revision,
// for comparison with the Revision of PoolStatus. Without devices it publishes an empty pool, which shows that the
// driver runs. Before the first call nothing is written. Want never blocks.
func (p *Pool) Want(devices []Device) (revision uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wanted.revision > 0 && !p.wanted.withdrawn && len(devices) == len(p.wanted.devices) &&
		(len(devices) == 0 || reflect.DeepEqual(devices, p.wanted.devices)) {
		return p.wanted.revision
	}
	p.wanted = wantedDevices{devices: slices.Clone(devices), revision: p.wanted.revision + 1}
	notify(p.wake)
	return p.wanted.revision
}

// Withdraw deletes the slices until the next Want, for a node that another driver of the same name serves: even an
// empty pool would conflict with the pool of that driver. It returns the revision like Want, and never blocks.
func (p *Pool) Withdraw() (revision uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.wanted.withdrawn {
		p.wanted = wantedDevices{withdrawn: true, revision: p.wanted.revision + 1}
		notify(p.wake)
	}
	return p.wanted.revision
}

func (p *Pool) latest() wantedDevices {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted
}

// Status returns the state that the API server has acknowledged. It never blocks.
func (p *Pool) Status() PoolStatus { return *p.status.Load() }

// Changes returns a channel that receives a value after the status has changed. It has one receiver.
func (p *Pool) Changes() <-chan struct{} { return p.changes }

// Writes returns the number of slices that the pool has created, updated or deleted.
func (p *Pool) Writes() uint64 { return p.writes.Load() }

// setStatus publishes a status if it differs from the latest.
func (p *Pool) setStatus(s PoolStatus) {
	old := p.status.Load()
	s.Since = old.Since
	if s.Since.IsZero() && p.state.known || s.Revision != old.Revision || !slices.Equal(s.Devices, old.Devices) {
		s.Since = time.Now()
	}
	if reflect.DeepEqual(s, *old) {
		return
	}
	p.status.Store(&s)
	notify(p.changes)
}

// notify sends to a channel of capacity 1 unless it is full.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run publishes devices until ctx ends. It leaves the slices in place, so that a restart of the agent does not affect
// the scheduler.
func (p *Pool) Run(ctx context.Context) {
	var (
		retry  poolBackoff
		logged string
	)
	for ctx.Err() == nil {
		begin := time.Now()
		err := p.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil || time.Since(begin) > stableAfter {
			retry, logged = poolBackoff{}, ""
		}
		if err == nil {
			_ = p.limit.Wait(ctx) // a proxy may end each watch immediately
			continue
		}
		pause := retry.next(err)
		switch first := retry.attempts == 1; {
		case isStale(err) && first:
			p.log.Debug("ResourceSlice changed in the meantime, will retry", "err", err)
		case err.Error() == logged:
			p.log.Debug("ResourceSlices not synchronized, will retry", "err", err)
		default:
			logged = err.Error()
			p.log.Warn("ResourceSlices not synchronized, will retry", "err", err)
		}
		p.fail(err)
		p.pause(ctx, pause)
	}
}

// fail records the error of an attempt.
func (p *Pool) fail(err error) {
	if statusCode(err) == 0 {
		p.state.clearRejections()
	}
	p.state.problem = err.Error()
	p.report()
}

// pause waits before a retry. A new Want ends it early.
func (p *Pool) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-p.wake:
		_ = p.limit.Wait(ctx)
	}
}
