package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"
)

// labelsRetry is the initial pause before a retry; it doubles up to maxLabelsRetry.
const (
	labelsRetry    = time.Second
	maxLabelsRetry = 5 * time.Minute
)

// NodeLabels keeps labels of a node applied. It applies them again in each slot of the client (see Client.Spread),
// since they may have been removed or the Node recreated.
type NodeLabels struct {
	node    string
	client  *Client
	log     *slog.Logger
	routine func(before, after map[string]string) bool

	wake chan struct{} // capacity 1: wanted has changed

	mu     sync.Mutex
	wanted map[string]string
}

// NewNodeLabels returns the labels of a node, which are applied while Run runs. routine reports whether a change may
// wait for the next slot; other changes are applied immediately. Its argument before has the last applied labels that
// were not empty.
func NewNodeLabels(client *Client, node string, routine func(before, after map[string]string) bool, log *slog.Logger) *NodeLabels {
	return &NodeLabels{node: node, client: client, routine: routine, log: log, wake: make(chan struct{}, 1)}
}

// Want replaces the labels to apply. An empty map removes all. The map must not be modified afterwards. Before the
// first call nothing is applied. Want never blocks.
func (l *NodeLabels) Want(labels map[string]string) {
	l.mu.Lock()
	l.wanted = labels
	l.mu.Unlock()
	notify(l.wake)
}

func (l *NodeLabels) latest() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wanted
}

// Run applies labels until ctx ends. It leaves them in place.
func (l *NodeLabels) Run(ctx context.Context) {
	var (
		applied      map[string]string
		lastNonEmpty map[string]string // last applied labels, unless empty: a driver upgrade removes all for a while
		known        bool              // applied is known
		again        <-chan time.Time  // nil until labels are wanted
		logged       string
	)
	for pause := labelsRetry; ; {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
			if want := l.latest(); known && (maps.Equal(applied, want) || l.routine(lastNonEmpty, want)) {
				continue // until the next slot or retry
			}
		case <-again:
		}
		want := l.latest()
		err := l.client.ApplyLabels(ctx, l.node, want)
		// A refused removal and a refused update have the same error, but are logged differently.
		if failure := fmt.Sprint(len(want) > 0, err); ctx.Err() == nil && err != nil && failure != logged {
			logged = failure
			l.logFailure(err, want, applied)
		}
		if err != nil && !refusedRemoval(err, want) {
			again, pause = time.After(Jittered(pause)), min(2*pause, maxLabelsRetry)
			continue
		}
		if applied, known = want, true; len(want) > 0 {
			lastNonEmpty = want
		}
		if err == nil {
			logged = ""
		}
		again, pause = time.After(l.client.untilSlot(0)), labelsRetry
	}
}

// refusedRemoval reports whether the API server refused to remove the labels. The removal is not retried before the
// next slot: an agent without the permission usually has applied no labels.
func refusedRemoval(err error, want map[string]string) bool { return len(want) == 0 && Refused(err) }

// logFailure logs why labels were not applied, given those that this process applied before.
func (l *NodeLabels) logFailure(err error, want, applied map[string]string) {
	text := truncate(err.Error(), errorMessageLimit)
	if !refusedRemoval(err, want) {
		l.log.Warn("node labels not updated, will retry", "err", text,
			"remedy", "allow the service account to patch nodes, as the role in deploy/ does")
		return
	}
	log := l.log.Info
	if len(applied) > 0 {
		log = l.log.Warn
	}
	log("node labels not removed", "err", text,
		"remedy", "if the node has labels of gpucdi, allow the service account to patch nodes until they are removed")
}
