package metrics

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/gpucdi/gpucdi/status"
)

// Metrics holds the metrics of the agent. It is safe for concurrent use. Only ServeHTTP can block.
type Metrics struct {
	registry *prometheus.Registry

	calls         *prometheus.HistogramVec
	registrations *prometheus.CounterVec
	xids          *xids
	reconciles    prometheus.Counter
	failures      *prometheus.CounterVec
	specWrites    prometheus.Counter

	claims // zero until EnableDRA is called
}

// New returns the metrics of an agent. node returns its status. xids are the XID codes with counters of their own; all
// others are counted together.
func New(node func(context.Context) status.Node, xids []int) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "gpucdi_kubelet_call_duration_seconds",
			Help:    "Duration of calls by the kubelet, by method and gRPC code.",
			Buckets: prometheus.ExponentialBuckets(10e-6, 4, 9), // 10 µs to 0.66 s
		}, []string{"resource", "method", "code"}),
		registrations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpucdi_registrations_total",
			Help: "Registrations with the kubelet. Each after the first means that an earlier one was lost, for example because the kubelet restarted.",
		}, []string{"resource"}),
		xids: newXIDs(xids),
		reconciles: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gpucdi_reconciles_total",
			Help: "Reconciles of the agent.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpucdi_reconcile_errors_total",
			Help: "Reconciles in which a stage failed for all GPUs: driver or spec.",
		}, []string{"stage"}),
		specWrites: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gpucdi_spec_writes_total",
			Help: "Writes of the CDI spec, because the driver, the GPUs or the file changed.",
		}),
	}
	for _, stage := range []string{"driver", "spec"} {
		m.failures.WithLabelValues(stage) // export 0, because Prometheus cannot detect an increase from no value
	}
	m.registry.MustRegister(m.calls, m.registrations, m.reconciles, m.failures, m.specWrites, collector{node, m.xids})
	return m
}

// ServeHTTP responds to a scrape in the text format, which all versions of Prometheus support. It omits inconsistent
// series, such as those of two GPUs with the same UUID, and returns all others.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	families, err := m.registry.Gather()
	if err != nil && len(families) == 0 {
		http.Error(w, "gathering metrics failed", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(w, family); err != nil {
			return // connection closed
		}
	}
	_, _ = w.Write(m.xids.encode()) // the connection may be closed
}

// Called records a call by the kubelet. code is the gRPC code.
func (m *Metrics) Called(resource, method, code string, took time.Duration) {
	m.calls.WithLabelValues(resource, method, code).Observe(took.Seconds())
}

// Registered counts a registration with the kubelet.
func (m *Metrics) Registered(resource string) { m.registrations.WithLabelValues(resource).Inc() }

// XID counts an XID that a GPU has raised the given number of times. gpu is its UUID.
func (m *Metrics) XID(gpu string, code, times int) { m.xids.count(gpu, code, times) }

// Reconciled counts a reconcile. driver and spec are errors that affect all GPUs, or nil.
func (m *Metrics) Reconciled(driver, spec error) {
	m.reconciles.Inc()
	if driver != nil {
		m.failures.WithLabelValues("driver").Inc()
	}
	if spec != nil {
		m.failures.WithLabelValues("spec").Inc()
	}
}

// SpecWritten counts a write of the CDI spec.
func (m *Metrics) SpecWritten() { m.specWrites.Inc() }
