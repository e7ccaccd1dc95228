package agent

import (
	"context"
	"log/slog"
	"reflect"
	"time"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/gpu"
)

const (
	// marksInterval is how often unchanged marks (the condition and the taint of the Node) are compared with the Node,
	// since they may have been removed, or the Node recreated.
	marksInterval = 5 * time.Minute
	// marksRetry is the initial retry backoff, and marksRetryLimit its bound. The bound is short, so that the Node is
	// correct soon after an outage of the API server.
	marksRetry      = time.Second
	marksRetryLimit = 30 * time.Second
)

// marker keeps the condition and the taint of the Node in line with the latest snapshot.
type marker struct {
	client *cluster.Client
	node   string
	log    *slog.Logger

	latest  *snapshot
	want    cluster.Marks
	written bool             // Mark was called with want, and is not due again
	marked  bool             // marks of this process may exist
	due     <-chan time.Time // when want may change without a snapshot; nil: never
	again   <-chan time.Time // when to compare want with the Node again; nil: never
	retry   time.Duration    // the next backoff
	logged  string           // the latest error, already logged
}

// syncMarks reconciles the condition and the taint of the Node until ctx ends. It then leaves them in place, because
// the next agent detects the same faults.
func (a *Agent) syncMarks(ctx context.Context, client *cluster.Client) {
	if client == nil {
		return
	}
	m := marker{client: client, node: a.cfg.NodeName, log: a.log, retry: marksRetry}
	for {
		select {
		case <-ctx.Done():
			return
		case m.latest = <-a.marksChanged:
		case <-m.due:
		case <-m.again:
			m.written = false
		}
		m.sync(ctx)
	}
}

// sync writes the marks if they have changed or a comparison is due.
func (m *marker) sync(ctx context.Context) {
	if m.latest == nil {
		return
	}
	now := time.Now()
	want, due, known := m.latest.marks(now)
	m.due = nil
	if !due.IsZero() {
		m.due = time.After(due.Sub(now))
	}
	if !known || m.written && reflect.DeepEqual(want, m.want) {
		return
	}
	m.want, m.written = want, true
	m.report(ctx, m.client.Mark(ctx, m.node, want))
}

// report logs a failed write, and schedules the next one.
func (m *marker) report(ctx context.Context, err error) {
	enabled := m.latest.config.Remediation.Enabled()
	m.marked = m.marked || enabled
	if err == nil {
		m.retry, m.logged, m.marked, m.again = marksRetry, "", enabled, nil
		if enabled {
			m.again = time.After(cluster.Jittered(marksInterval))
		}
		return
	}
	if !m.marked && cluster.Refused(err) {
		m.again = nil // no marks of this process exist, and it has no permission to remove those of an earlier one
		return
	}
	if ctx.Err() == nil && err.Error() != m.logged {
		m.logged = err.Error()
		m.log.Warn("node condition and taint not updated, will retry", "err", gpu.OneLine(err),
			"remedy", "allow the service account to get and patch nodes and to patch nodes/status, as the chart does with config.remediation")
	}
	m.again, m.retry = time.After(cluster.Jittered(m.retry)), min(2*m.retry, marksRetryLimit)
}
