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

// otherXID is the label value for codes without series of their own. They come from the hardware and would make the
// cardinality unbounded.
const otherXID = "other"

// xids counts XIDs by GPU and code. Each GPU has a series per code from the start, because Prometheus cannot detect the
// increase to the first value of a series. The encoded text is cached, because a node has hundreds of these series and
// they rarely change.
type xids struct {
	labels []string // of the codes, sorted

	mu   sync.Mutex
	gpus map[string][]*dto.Metric // by UUID, in the order of labels
	text []byte                   // the encoded series; nil if they have changed
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
	i, found := slices.BinarySearch(x.labels, strconv.Itoa(code))
	if !found {
		i, _ = slices.BinarySearch(x.labels, otherXID)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	*x.series(gpu)[i].Counter.Value += float64(times)
	x.text = nil
}

// series returns the series of a GPU. The caller must hold mu.
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

// keep adds series for new GPUs and removes those of GPUs that are not in gpus.
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

// encode returns all series in the text format.
func (x *xids) encode() []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.text != nil || len(x.gpus) == 0 {
		return x.text
	}
	family := &dto.MetricFamily{
		Name: new("gpucdi_xids_total"),
		Help: new("XIDs reported by the driver, by GPU and code. Codes that docs/health.md does not list are counted as other."),
		Type: dto.MetricType_COUNTER.Enum(),
	}
	for _, uuid := range slices.Sorted(maps.Keys(x.gpus)) {
		family.Metric = append(family.Metric, x.gpus[uuid]...)
	}
	var text bytes.Buffer
	_, _ = expfmt.MetricFamilyToText(&text, family) // writes to a buffer do not fail
	x.text = text.Bytes()
	return x.text
}
