package metrics

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/gpucdi/gpucdi/status"
)

// Metrics counts what happens in the agent. Its methods never wait, and any
// goroutine may call them.
type Metrics struct {
	registry *prometheus.Registry

	calls         *prometheus.HistogramVec
	registrations *prometheus.CounterVec
	xids          *xids
	reconciles    prometheus.Counter
	failures      *prometheus.CounterVec
	specWrites    prometheus.Counter
}

// New returns the metrics of an agent whose status is that of node. xids are the codes
// that are counted each for itself.
func New(node func(context.Context) status.Node, xids []int) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "gpucdi_kubelet_call_duration_seconds",
			Help:    "How long the kubelet's calls took to answer, by method and gRPC code.",
			Buckets: prometheus.ExponentialBuckets(10e-6, 4, 9), // 10 µs to 0.66 s
		}, []string{"resource", "method", "code"}),
		registrations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpucdi_registrations_total",
			Help: "Registrations with the kubelet; each after the first means that it or our socket was gone.",
		}, []string{"resource"}),
		xids: newXIDs(xids),
		reconciles: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gpucdi_reconciles_total",
			Help: "Rounds of the agent's loop that compared what should be with what is.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpucdi_reconcile_errors_total",
			Help: "Those rounds in which a stage failed for every GPU: driver or spec.",
		}, []string{"stage"}),
		specWrites: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gpucdi_spec_writes_total",
			Help: "CDI specs written: the driver, the GPUs or the file had changed.",
		}),
	}
	for _, stage := range []string{"driver", "spec"} {
		m.failures.WithLabelValues(stage) // an increase from nothing to one is none to Prometheus
	}
	m.registry.MustRegister(m.calls, m.registrations, m.reconciles, m.failures, m.specWrites, knowledge{node, m.xids})
	return m
}

// ServeHTTP answers a scrape, in Prometheus's text format, which every version of it
// reads. Series that contradict each other, as of two GPUs with the same UUID, are left
// out: they are no reason to withhold those of the others.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	families, err := m.registry.Gather()
	if err != nil && len(families) == 0 {
		http.Error(w, "gathering the metrics failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(w, family); err != nil {
			return // the client has gone
		}
	}
	_, _ = w.Write(m.xids.encode()) // the client may have gone
}

// Called counts a call of the kubelet's.
func (m *Metrics) Called(resource, method, code string, took time.Duration) {
	m.calls.WithLabelValues(resource, method, code).Observe(took.Seconds())
}

// Registered counts a registration with the kubelet.
func (m *Metrics) Registered(resource string) { m.registrations.WithLabelValues(resource).Inc() }

// XID counts an error that the driver reported of a GPU so many times.
func (m *Metrics) XID(gpu string, code, times int) { m.xids.count(gpu, code, times) }

// Reconciled counts a round of the loop. The errors are those that concern
// every GPU.
func (m *Metrics) Reconciled(driver, spec error) {
	m.reconciles.Inc()
	if driver != nil {
		m.failures.WithLabelValues("driver").Inc()
	}
	if spec != nil {
		m.failures.WithLabelValues("spec").Inc()
	}
}

// SpecWritten counts a CDI spec that was written.
func (m *Metrics) SpecWritten() { m.specWrites.Inc() }
