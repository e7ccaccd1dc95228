package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/time/rate"
)

const (
	// queueSize is the number of Events that can wait to be sent.
	queueSize = 64
	// maxSent is the number of sent Events that are tracked, to update their count when they recur.
	maxSent = 256
	// maxAge is the age at which an Event that the API server has not accepted is dropped. Events outlive outages of the
	// API server, since a fault that occurs meanwhile has no other. maxFailingAge is the same if the API server responds
	// with an error that may concern only this Event, for example because a webhook for its namespace fails.
	maxAge        = 10 * time.Minute
	maxFailingAge = 30 * time.Second
	// burst is the number of Events that are sent without a pause between them.
	burst = 25
	// firstPause is the pause after the first attempt. It doubles with each of the next attempts, maxDoublings times.
	firstPause   = time.Second
	maxDoublings = 3
)

// EventRecorder sends the Events of an agent to the API server.
type EventRecorder struct {
	node   string
	client *Client
	log    *slog.Logger
	queue  chan queuedEvent

	limit *rate.Limiter
	pause time.Duration // after the first attempt

	// Only used by Run.
	sent   map[Event]sentEvent
	logged string // the error that was logged last
}

// queuedEvent is an Event and the time it was recorded.
type queuedEvent struct {
	Event
	at time.Time
}

// sentEvent identifies an Event that the API server has accepted.
type sentEvent struct {
	name  string
	count int
}

// NewEventRecorder returns the recorder of the agent on a node. It sends Events while Run runs: a burst when many
// occur at once, and one per interval after that, which limits a device that flaps.
func NewEventRecorder(node string, client *Client, interval time.Duration, log *slog.Logger) *EventRecorder {
	return &EventRecorder{
		node:   node,
		client: client,
		log:    log,
		queue:  make(chan queuedEvent, queueSize),
		limit:  rate.NewLimiter(rate.Every(interval), burst),
		pause:  firstPause,
		sent:   map[Event]sentEvent{},
	}
}

// Record queues an Event. It never blocks: if the queue is full, the Event is dropped. A nil recorder drops every
// Event.
func (r *EventRecorder) Record(event Event) {
	if r == nil {
		return
	}
	select {
	case r.queue <- queuedEvent{event, time.Now()}:
	default:
		r.drop(queuedEvent{Event: event})
	}
}

// Run sends Events until ctx ends. Routine Events wait for the slot of the client, and are lost if ctx ends before.
func (r *EventRecorder) Run(ctx context.Context) {
	var waiting []queuedEvent
	var slot <-chan time.Time // nil: no Event is waiting
	for {
		select {
		case <-ctx.Done():
			return
		case next := <-r.queue:
			switch {
			case !next.Routine:
				r.deliver(ctx, next)
			case len(waiting) == queueSize:
				r.drop(next)
			default:
				waiting = append(waiting, next)
				if slot == nil {
					slot = time.After(r.client.untilSlot(0))
				}
			}
		case <-slot:
			for _, next := range waiting {
				r.deliver(ctx, next)
			}
			waiting, slot = nil, nil
		}
	}
}

func (r *EventRecorder) drop(e queuedEvent) {
	r.log.Warn("Event dropped, queue is full", "reason", e.Reason, "message", e.Message)
}

// deliver sends an Event within the rate limit, and logs an error unless it repeats the last one.
func (r *EventRecorder) deliver(ctx context.Context, next queuedEvent) {
	err := r.limit.Wait(ctx)
	if err == nil {
		err = r.send(ctx, next)
	}
	switch {
	case ctx.Err() != nil:
	case err == nil:
		r.logged = ""
	case err.Error() != r.logged:
		r.logged = err.Error()
		r.log.Warn("Event dropped", "reason", next.Reason, "message", next.Message, "err", err,
			"remedy", "if forbidden, allow the service account to create and patch Events, as in deploy/")
	}
}

// send retries until the API server accepts or refuses the Event, or it is too old.
func (r *EventRecorder) send(ctx context.Context, e queuedEvent) error {
	// The name is the same in all attempts, since a failed one may have created the Event.
	o := newEventObject(r.node, e.Event, e.at)
	for attempt := 0; ; attempt++ {
		err := r.createOrUpdate(ctx, e.Event, o)
		if age := time.Since(e.at); err == nil || Refused(err) || age >= maxAge || age >= maxFailingAge && statusCode(err) == http.StatusInternalServerError {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(Jittered(r.pause << min(attempt, maxDoublings))):
		}
	}
}

// createOrUpdate increments the count of an Event of the node that was sent before, or creates an Event as o. The agent
// may not update Events of claims.
func (r *EventRecorder) createOrUpdate(ctx context.Context, e Event, o eventObject) error {
	if sent, ok := r.sent[e]; ok {
		next := recurrence{Count: sent.count + 1, Last: o.Last}
		err := r.client.updateEvent(ctx, sent.name, next)
		if statusCode(err) != http.StatusNotFound {
			if err == nil {
				r.sent[e] = sentEvent{sent.name, next.Count}
			}
			return err
		}
		delete(r.sent, e) // expired: the API server keeps Events for an hour by default
	}
	if err := r.client.createEvent(ctx, o); err != nil && !errors.Is(err, ErrAlreadyExists) {
		return err
	}
	if e.Claim != (ClaimRef{}) {
		return nil
	}
	if len(r.sent) == maxSent {
		clear(r.sent)
	}
	r.sent[e] = sentEvent{o.Metadata.Name, 1}
	return nil
}
