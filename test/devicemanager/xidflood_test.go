package devicemanager

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// XIDs of class application do not trigger reconciles, even while another GPU has a fault that only a reconcile can
// clear. Their log lines are rate-limited.
func TestXIDFlood(t *testing.T) {
	const batches, batch = 5, 32 // the simulated driver queues at most 64 events
	n := newNode(t, simdriver.H100x8())
	gpus := n.driver.State().GPUs
	if err := n.driver.InjectFault(simdriver.Fault{GPU: gpus[5].UUID, Func: "nvmlDeviceGetPciInfo", Return: unknownError}); err != nil {
		t.Fatal(err)
	}
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 7)

	before := n.metricValue(t, "gpucdi_reconciles_total")
	for i := range batches {
		err := n.driver.Update(func(s *simdriver.State) error {
			for range batch {
				s.Raise(simdriver.Event{GPU: gpus[1].UUID, Type: simdriver.EventXID, Data: 13, GI: simdriver.NotSupported, CI: simdriver.NotSupported})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		n.awaitMetric(t, fmt.Sprintf("gpucdi_xids_total{gpu=%q,xid=\"13\"} %d", gpus[1].UUID, (i+1)*batch))
	}
	// Probes, one a second, cause some reconciles, because the fault may have cleared.
	if reconciles := n.metricValue(t, "gpucdi_reconciles_total") - before; reconciles > batch {
		t.Errorf("%d XIDs caused %d reconciles, want only those of probes", batches*batch, reconciles)
	}
	k.awaitGPUs(t, 8, 7)
	n.stopAgent(t)
	if lines := strings.Count(n.logs.String(), "xid=13"); lines == 0 || lines > batches {
		t.Errorf("%d XIDs caused %d log lines, want 1 to %d", batches*batch, lines, batches)
	}
}

// metricValue returns the value of a metric without labels.
func (n *node) metricValue(t *testing.T, name string) int {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + name + ` (\d+)$`).FindStringSubmatch(n.get(t, "/metrics"))
	if found == nil {
		t.Fatalf("metric %s is missing", name)
	}
	value, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return value
}
