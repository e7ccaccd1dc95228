package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// claims are the metrics of the kubelet's calls for ResourceClaims.
type claims struct {
	prepares, unprepares prometheus.Histogram
	refusals             *prometheus.CounterVec
	waits                prometheus.Counter
}

// EnableDRA adds the metrics of ResourceClaims. It must be called before Waited, Prepared and Unprepared. sliceWrites
// returns the number of ResourceSlices that the API server has created, updated or deleted. refusals are the values of
// the label reason. Their counters start at 0, so that increase() counts the first refusal.
func (m *Metrics) EnableDRA(sliceWrites func() uint64, refusals []string) {
	m.claims = claims{
		prepares:   claimHistogram("prepare", "Time to prepare a ResourceClaim, including the wait for devices of other holders."),
		unprepares: claimHistogram("unprepare", "Time to unprepare a ResourceClaim."),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpucdi_dra_refusals_total",
			Help: "Failed calls to prepare or unprepare a ResourceClaim, by reason. The kubelet retries.",
		}, []string{"reason"}),
		waits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gpucdi_dra_waits_total",
			Help: "Calls to prepare a ResourceClaim that waited for devices, for example of other holders.",
		}),
	}
	writes := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "gpucdi_dra_slice_writes_total",
		Help: "ResourceSlices created, updated or deleted.",
	}, func() float64 { return float64(sliceWrites()) })
	for _, reason := range refusals {
		m.refusals.WithLabelValues(reason)
	}
	m.registry.MustRegister(m.prepares, m.unprepares, m.refusals, m.waits, writes)
}

func claimHistogram(call, help string) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "gpucdi_dra_" + call + "_duration_seconds",
		Help:    help,
		Buckets: prometheus.ExponentialBuckets(250e-6, 4, 9), // 250 µs to 16 s
	})
}

// Waited records that a call to prepare a claim waits for devices, once for each call.
func (c *claims) Waited() { c.waits.Inc() }

// Prepared records a call to prepare a claim. refusal is the value of the label reason; empty if the call succeeded.
func (c *claims) Prepared(took time.Duration, refusal string) { c.record(c.prepares, took, refusal) }

// Unprepared records a call to unprepare a claim. refusal is as in Prepared.
func (c *claims) Unprepared(took time.Duration, refusal string) {
	c.record(c.unprepares, took, refusal)
}

func (c *claims) record(durations prometheus.Histogram, took time.Duration, refusal string) {
	durations.Observe(took.Seconds())
	if refusal != "" {
		c.refusals.WithLabelValues(refusal).Inc()
	}
}
