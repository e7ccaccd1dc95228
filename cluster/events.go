package cluster

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"golang.org/x/time/rate"
)

const (
	// queued is how many Events may wait for the API server.
	queued = 64
	// remembered is how many Events are known to be there, to be counted up
	// when they happen again.
	remembered = 256
	// tries is how often an Event is sent until it is dropped.
	tries = 6
	// firstPause is that before the second try; each next one is twice as long.
	firstPause = time.Second
)

// Events tells the API server what happens to a node.
type Events struct {
	node   string
	client *Client
	log    *slog.Logger
	queue  chan happened

	limit *rate.Limiter
	pause time.Duration      // before the second try
	sent  map[Event]recorded // Run's alone
}

// happened is an Event at its time.
type happened struct {
	Event
	at time.Time
}

// recorded is an Event that the API server has.
type recorded struct {
	name  string
	count int
}

// NewEvents returns the Events of a node, which are sent while Run runs.
func NewEvents(node string, client *Client, log *slog.Logger) *Events {
	return &Events{
		node:   node,
		client: client,
		log:    log,
		queue:  make(chan happened, queued),
		// A node where everything changes at once may say so; one where
		// something flaps says it now and then.
		limit: rate.NewLimiter(rate.Every(10*time.Second), 25),
		pause: firstPause,
		sent:  map[Event]recorded{},
	}
}

// Record lets the API server be told. It never waits: with too many waiting
// already, e is dropped. A nil Events drops everything.
func (e *Events) Record(event Event) {
	if e == nil {
		return
	}
	select {
	case e.queue <- happened{event, time.Now()}:
	default:
		e.log.Warn("Kubernetes Event is dropped: too many wait for the API server", "reason", event.Reason, "message", event.Message)
	}
}

// Run sends Events until ctx ends.
func (e *Events) Run(ctx context.Context) {
	for said := ""; ; {
		var next happened
		select {
		case <-ctx.Done():
			return
		case next = <-e.queue:
		}
		err := e.limit.Wait(ctx)
		if err == nil {
			err = e.send(ctx, next)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			said = ""
		case err.Error() != said:
			said = err.Error()
			e.log.Warn("Kubernetes Event is dropped: may the service account create and patch events in the namespace default, as in deploy/?",
				"reason", next.Reason, "message", next.Message, "err", err)
		}
	}
}

// send tries until the API server has the Event, or refuses it, or has been
// away for too long.
func (e *Events) send(ctx context.Context, h happened) error {
	pause := e.pause
	for try := 1; ; try++ {
		err := e.put(ctx, h)
		var refused *refusedError
		if err == nil || errors.As(err, &refused) || try == tries {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause + rand.N(pause/4)):
		}
		pause *= 2
	}
}

// put counts up the Event that there is, or makes one.
func (e *Events) put(ctx context.Context, h happened) error {
	if was, known := e.sent[h.Event]; known {
		now := again{Count: was.count + 1, Last: h.at.UTC().Truncate(time.Second)}
		err := e.client.repeat(ctx, was.name, now)
		var refused *refusedError
		if !errors.As(err, &refused) || refused.code != http.StatusNotFound {
			if err == nil {
				e.sent[h.Event] = recorded{was.name, now.Count}
			}
			return err
		}
		delete(e.sent, h.Event) // Events are kept for an hour
	}
	o := newObject(e.node, h.Event, h.at)
	if err := e.client.create(ctx, o); err != nil {
		return err
	}
	if len(e.sent) == remembered {
		clear(e.sent)
	}
	e.sent[h.Event] = recorded{o.Metadata.Name, 1}
	return nil
}
