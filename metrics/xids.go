package metrics

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpucdi/gpucdi/status"
)

// otherXID is the label of all codes that are not known: hardware chooses them, and each
// value of a label is a series.
const otherXID = "other"

// xids counts XIDs by GPU and code. A GPU has a series for each code from the start, since
// Prometheus takes the first value that it sees for no increase.
type xids struct {
	labels []string // of the codes
	total  *prometheus.CounterVec

	mu   sync.Mutex
	gpus map[string]bool // that have series
}

func newXIDs(codes []int) *xids {
	x := &xids{
		gpus: map[string]bool{},
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpucdi_xids_total",
			Help: "XID errors that the driver reported, by GPU and code: one that docs/health.md lists, or other.",
		}, []string{"gpu", "xid"}),
	}
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
	gpu = strings.ToValidUTF8(gpu, "")
	x.mu.Lock()
	defer x.mu.Unlock()
	x.add(gpu)
	x.total.WithLabelValues(gpu, label).Add(float64(times))
}

// add makes the series of a GPU.
func (x *xids) add(gpu string) {
	if x.gpus[gpu] {
		return
	}
	x.gpus[gpu] = true
	for _, label := range x.labels {
		x.total.WithLabelValues(gpu, label)
	}
}

// collect yields the counters of these GPUs, and drops those of all others.
func (x *xids) collect(s sink, gpus []status.GPU) {
	x.mu.Lock()
	defer x.mu.Unlock()
	present := map[string]bool{}
	for _, g := range gpus {
		uuid := strings.ToValidUTF8(g.UUID, "")
		present[uuid] = true
		x.add(uuid)
	}
	for uuid := range x.gpus {
		if !present[uuid] {
			x.total.DeletePartialMatch(prometheus.Labels{"gpu": uuid})
			delete(x.gpus, uuid)
		}
	}
	x.total.Collect(s)
}
