package devicemanager

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/readers"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// alerts is the path of the alerting rules in the repository.
const alerts = "deploy/gpucdi/alerts.yaml"

// target are the labels that the Prometheus operator adds to the metrics of an agent.
var target = map[string]string{"instance": "node", "job": "gpucdi/gpucdi", "namespace": "gpucdi",
	"pod": "gpucdi-abcde", "container": "gpucdi", "endpoint": "metrics"}

// query is a PromQL query of the dashboard or the docs.
type query struct {
	source, expr string
	labels       []string // required in the results
}

// Each query has results in Prometheus's engine on a node with all conditions that the queries select.
func TestQueriesHaveResults(t *testing.T) {
	t.Parallel()
	n, held := newBusyNode(t)
	first := n.get(t, "/metrics") + absentSeries(t, held, 1)
	const application = 13
	if err := n.driver.RaiseXID(n.uuids()[7], application); err != nil { // the first XID 13
		t.Fatal(err)
	}
	n.admitPod(t, n.kubelet, "another", 1)
	if err := n.driver.Update(func(s *simdriver.State) error {
		c := &s.GPU(held).Counters
		c.HWThermal, c.PCIeReplays, c.NVLinkReplays = 1e9, 1, 1
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		fmt.Sprintf(`gpucdi_xids_total{gpu=%q,xid="13"} 1`, n.uuids()[7]),
		fmt.Sprintf(`gpucdi_gpu_pcie_errors_total{gpu=%q,kind="replay"} 1`, held),
		`gpucdi_kubelet_call_duration_seconds_count{code="OK",method="Allocate",resource="nvidia.com/gpu"} 2`,
	} {
		n.awaitMetric(t, line)
	}
	second := n.get(t, "/metrics") + absentSeries(t, held, 2)

	queries := slices.Concat(dashboardQueries(t), documentedQueries(t))
	for i, a := range runQueries(t, queries, first, second) {
		q := queries[i]
		if a.Error != "" || len(a.Unknown) > 0 || len(a.Samples) == 0 {
			t.Errorf("%s: %s: got %+v, want results", q.source, q.expr, a)
		}
		for _, label := range q.labels {
			if !slices.ContainsFunc(a.Samples, func(s readers.Sample) bool { return s.Labels[label] != "" }) {
				t.Errorf("%s: %s: got %+v, want the label %s", q.source, q.expr, a.Samples, label)
			}
		}
		if slices.ContainsFunc(a.Samples, func(s readers.Sample) bool { return s.Value == "NaN" }) {
			t.Errorf("%s: %s: got %+v", q.source, q.expr, a.Samples)
		}
		if strings.HasPrefix(q.expr, "increase(gpucdi_xids_total") && (len(a.Samples) != 1 || a.Samples[0].Labels["xid"] != "13") {
			t.Errorf("%s: got %+v", q.expr, a.Samples)
		}
		switch q.source {
		case "Allocations":
			if len(a.Samples) != 1 || a.Samples[0].Labels["device"] != held || a.Samples[0].Labels["pod"] != "holder" {
				t.Errorf("%s: got %+v", q.source, a.Samples)
			}
		case "Unhealthy GPUs":
			if len(a.Samples) != 1 || a.Samples[0].Labels["code"] != "rows_failed" || a.Samples[0].Labels["gpu"] == held {
				t.Errorf("%s: got %+v", q.source, a.Samples)
			}
		}
	}
}

// No alert fires on a healthy node or on a node without a driver. The end-to-end test makes each alert fire.
func TestNoFalseAlerts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		prepare func(*node) error
		await   string
	}{
		"healthy":   {func(*node) error { return nil }, `gpucdi_component_healthy{component="kubelet"} 1`},
		"no driver": {func(n *node) error { return n.driver.Uninstall() }, `gpucdi_component_healthy{component="driver"} 0`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, simdriver.H100x8())
			if err := tc.prepare(n); err != nil {
				t.Fatal(err)
			}
			startKubelet(t, n.kubeletDir, 2)
			n.startAgent(t)
			n.awaitMetric(t, tc.await)
			n.awaitMetric(t, `gpucdi_component_healthy{component="runtime"} 1`)
			result, err := readers.Prometheus(t.Context(), readers.Scenario{
				Target: target, Rules: read(t, alerts),
				Phases: []readers.Phase{{Scrape: n.get(t, "/metrics"), Duration: time.Hour}},
			})
			if err != nil {
				t.Fatal(err)
			}
			if firing := result.Alerts[0]; len(firing) > 0 {
				t.Errorf("%v fire", firing)
			}
		})
	}
}

// runQueries runs queries in Prometheus on scrapes of an agent.
func runQueries(t *testing.T, queries []query, scrapes ...string) []readers.Answer {
	t.Helper()
	s := readers.Scenario{Target: target, Rules: read(t, alerts)}
	for _, scrape := range scrapes {
		s.Phases = append(s.Phases, readers.Phase{Scrape: scrape})
	}
	for _, q := range queries {
		s.Queries = append(s.Queries, q.expr)
	}
	result, err := readers.Prometheus(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return result.Answers
}

// newBusyNode returns a node without a runtime, with an unreadable GPU, an unhealthy one, an allocated one and an
// invalid config. It also returns the UUID of the allocated GPU.
func newBusyNode(t *testing.T) (n *busyNode, held string) {
	n = &busyNode{node: newNode(t, simdriver.H100x8())}
	n.runtime.stop()
	unreadable := simdriver.Fault{GPU: n.uuids()[6], Func: "nvmlDeviceGetUUID", Return: unknownError}
	if err := n.driver.Update(func(s *simdriver.State) error { s.Faults = []simdriver.Fault{unreadable}; return nil }); err != nil {
		t.Fatal(err)
	}
	n.kubelet = startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	n.kubelet.awaitGPUs(t, 7, 7)
	pod, gpus := n.admitPod(t, n.kubelet, "holder", 1)
	servePodResources(t, n.kubeletDir, pod.Namespace, pod.Name, gpus)
	free := slices.DeleteFunc(n.uuids(), func(uuid string) bool { return uuid == gpus[0] || uuid == unreadable.GPU })
	if err := n.driver.Update(func(s *simdriver.State) error {
		g := s.GPU(free[0])
		g.RecoveryAction, g.ECCCorrected, g.ClocksEvents = simdriver.RecoveryReset, 7, hwThermal
		g.Fan, g.MemoryTemperature, g.RetiredSBE = 50, 90, 1
		g.RemappedUnc, g.RemappedPending, g.RemappedFailure = 1, 1, 1
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := n.driver.RaiseXID(free[0], 48); err != nil {
		t.Fatal(err)
	}
	n.configure(t, "mig: {strategy: both}")
	for _, line := range []string{
		`gpucdi_xids_total{gpu="` + free[0] + `",xid="48"} 1`,
		`gpucdi_devices{health="unhealthy",reason="rows_failed",resource="nvidia.com/gpu"} 1`,
		`gpucdi_devices_free{resource="nvidia.com/gpu"} 5`,
		`gpucdi_device_allocated{claim="",container="main",device="` + gpus[0],
		`gpucdi_gpu_ecc_errors_total{gpu="` + free[0] + `",kind="corrected"} 7`,
		`gpucdi_config_last_reload_successful 0`,
	} {
		n.awaitMetric(t, line)
	}
	return n, gpus[0]
}

// busyNode is a node with its kubelet.
type busyNode struct {
	*node
	kubelet *kubelet
}

// labelNames returns the first submatch of each match of pattern.
func labelNames(text, pattern string) (labels []string) {
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		labels = append(labels, match[1])
	}
	return labels
}

// read returns the content of a file, by its path in the repository.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// panel is a panel of the dashboard. A row contains its panels while it is collapsed.
type panel struct {
	Title   string
	Targets []struct{ Expr, LegendFormat string }
	Panels  []panel
}

// queries returns the queries of the panel and of the panels in it, with all nodes selected.
func (p panel) queries(t *testing.T) (queries []query) {
	t.Helper()
	for _, target := range p.Targets {
		expr := strings.ReplaceAll(target.Expr, "$node", ".*")
		if expr == target.Expr {
			t.Errorf("%s: %s does not select by $node", p.Title, expr)
		}
		queries = append(queries, query{p.Title, expr, labelNames(target.LegendFormat, `{{(\w+)}}`)})
	}
	for _, inner := range p.Panels {
		queries = append(queries, inner.queries(t)...)
	}
	return queries
}

// dashboardQueries returns the queries of the dashboard's panels and variables.
func dashboardQueries(t *testing.T) (queries []query) {
	t.Helper()
	var d struct {
		panel
		Templating struct {
			List []struct{ Name, Type, Query string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "deploy/gpucdi/dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	queries = d.queries(t)
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			parts := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(v.Query)
			if parts == nil {
				t.Fatalf("variable %s: %s is not label_values(metric, label)", v.Name, v.Query)
			}
			queries = append(queries, query{v.Name, parts[1], parts[2:]})
		}
	}
	return queries
}

// absentMetrics matches metrics that the node does not have, because it has no DRA, MIG devices, running containers or
// shares. Other tests cover them.
var absentMetrics = regexp.MustCompile(`^gpucdi_(dra|mig|container|shared?)_`)

// absentSeries returns series of absentMetrics with a sample value. A histogram has no label but le. Other metrics have
// the documented labels: the label gpu has the UUID of a GPU as its value, every other label its own name.
func absentSeries(t *testing.T, gpu string, value int) string {
	t.Helper()
	var series strings.Builder
	for _, m := range documentedMetrics(t) {
		if !absentMetrics.MatchString(m.name) {
			continue
		}
		var labels []string
		for _, label := range m.labels {
			labels = append(labels, fmt.Sprintf("%s=%q", label, label))
		}
		text := strings.Replace(strings.Join(labels, ","), `gpu="gpu"`, fmt.Sprintf("gpu=%q", gpu), 1)
		if m.kind != "histogram" {
			fmt.Fprintf(&series, "%s{%s} %d\n", m.name, text, value)
			continue
		}
		for _, sample := range []string{`_bucket{le="1"}`, `_bucket{le="+Inf"}`, "_sum", "_count"} {
			fmt.Fprintf(&series, "%s%s %d\n", m.name, sample, value)
		}
	}
	return series.String()
}

// documentedMetric is a row of the table in docs/metrics.md.
type documentedMetric struct {
	name, kind string
	labels     []string
}

func documentedMetrics(t *testing.T) (metrics []documentedMetric) {
	t.Helper()
	for line := range strings.Lines(read(t, "docs/metrics.md")) {
		if cells := strings.Split(line, "|"); len(cells) == 6 && strings.HasPrefix(cells[1], " `gpucdi_") {
			metrics = append(metrics, documentedMetric{strings.Trim(cells[1], " `"), strings.TrimSpace(cells[2]), labelNames(cells[3], "`(\\w+)`")})
		}
	}
	return metrics
}

// documentedQueries returns the queries in docs/metrics.md, and the metrics there except absentMetrics.
func documentedQueries(t *testing.T) (queries []query) {
	t.Helper()
	const source = "docs/metrics.md"
	for line := range strings.Lines(read(t, source)) {
		if strings.HasPrefix(line, "    ") {
			queries = append(queries, query{source: source, expr: strings.TrimSpace(line)})
		}
	}
	for _, m := range documentedMetrics(t) {
		if absentMetrics.MatchString(m.name) {
			continue
		}
		if m.kind == "histogram" {
			m.name += "_count"
		}
		labels := slices.DeleteFunc(m.labels, func(l string) bool { return l == "claim" }) // the node has no claims
		queries = append(queries, query{source, m.name, labels})
	}
	return queries
}
