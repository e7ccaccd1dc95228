package metrics

import (
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpucdi/gpucdi/status"
)

var xidsTotal = describe("gpucdi_xids_total",
	"XID errors that the driver reported, by GPU and code: one that docs/health.md lists, or other.", "gpu", "xid")

// otherXID is the label of all codes that are not known: hardware chooses them, and each
// value of a label is a series.
const otherXID = "other"

// xids counts XIDs by GPU and code. A GPU has a series for each code from the start, since
// Prometheus takes the first value that it sees for no increase.
type xids struct {
	labels []string // of the codes

	mu     sync.Mutex
	counts map[string]map[string]float64 // by GPU and label
}

func newXIDs(codes []int) *xids {
	x := &xids{counts: map[string]map[string]float64{}}
	for _, code := range codes {
		x.labels = append(x.labels, strconv.Itoa(code))
	}
	x.labels = append(x.labels, otherXID)
	return x
}

func (x *xids) count(gpu string, code, times int) {
	label := strconv.Itoa(code)
	if !slices.Contains(x.labels, label) {
		label = otherXID
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.counts[gpu] == nil {
		x.counts[gpu] = map[string]float64{}
	}
	x.counts[gpu][label] += float64(times)
}

// collect yields the counters of these GPUs, and drops those of all others.
func (x *xids) collect(s sink, gpus []status.GPU) {
	x.mu.Lock()
	defer x.mu.Unlock()
	maps.DeleteFunc(x.counts, func(uuid string, _ map[string]float64) bool {
		return !slices.ContainsFunc(gpus, func(g status.GPU) bool { return g.UUID == uuid })
	})
	for _, g := range gpus {
		for _, label := range x.labels {
			s.metric(xidsTotal, prometheus.CounterValue, x.counts[g.UUID][label], g.UUID, label)
		}
	}
}
