package metrics

import (
	"bytes"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/gpucdi/gpucdi/status"
)

// otherXID is the label of all codes that are not known: hardware chooses them, and each
// value of a label is a series.
const otherXID = "other"

// xids counts XIDs by GPU and code. A GPU has a series for each code from the start, since
// Prometheus takes the first value that it sees for no increase. They are kept as they are
// encoded: a node has hundreds, and they hardly ever change between two scrapes.
type xids struct {
	labels []string // of the codes, sorted

	mu   sync.Mutex
	gpus map[string][]*dto.Metric // by UUID, in the order of labels
	text []byte                   // all series as last encoded; nil: they have changed since
}

func newXIDs(codes []int) *xids {
	x := &xids{gpus: map[string][]*dto.Metric{}, labels: []string{otherXID}}
	for _, code := range codes {
		x.labels = append(x.labels, strconv.Itoa(code))
	}
	slices.Sort(x.labels)
	return x
}

func (x *xids) count(gpu string, code, times int) {
	i, known := slices.BinarySearch(x.labels, strconv.Itoa(code))
	if !known {
		i, _ = slices.BinarySearch(x.labels, otherXID)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	*x.series(gpu)[i].Counter.Value += float64(times)
	x.text = nil
}

// series returns those of a GPU. mu is held.
func (x *xids) series(gpu string) []*dto.Metric {
	gpu = strings.ToValidUTF8(gpu, "")
	if x.gpus[gpu] == nil {
		x.text = nil
		for _, label := range x.labels {
			x.gpus[gpu] = append(x.gpus[gpu], &dto.Metric{
				Label:   []*dto.LabelPair{{Name: new("gpu"), Value: &gpu}, {Name: new("xid"), Value: &label}},
				Counter: &dto.Counter{Value: new(float64)},
			})
		}
	}
	return x.gpus[gpu]
}

// keep makes the series those of these GPUs.
func (x *xids) keep(gpus []status.GPU) {
	x.mu.Lock()
	defer x.mu.Unlock()
	present := map[string]bool{}
	for _, g := range gpus {
		present[strings.ToValidUTF8(g.UUID, "")] = true
		x.series(g.UUID)
	}
	for uuid := range x.gpus {
		if !present[uuid] {
			delete(x.gpus, uuid)
			x.text = nil
		}
	}
}

// encode returns all series as text.
func (x *xids) encode() []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.text != nil || len(x.gpus) == 0 {
		return x.text
	}
	family := &dto.MetricFamily{
		Name: new("gpucdi_xids_total"),
		Help: new("XID errors that the driver reported, by GPU and code: one that docs/health.md lists, or other."),
		Type: dto.MetricType_COUNTER.Enum(),
	}
	for _, uuid := range slices.Sorted(maps.Keys(x.gpus)) {
		family.Metric = append(family.Metric, x.gpus[uuid]...)
	}
	var text bytes.Buffer
	_, _ = expfmt.MetricFamilyToText(&text, family) // a buffer takes everything
	x.text = text.Bytes()
	return x.text
}
