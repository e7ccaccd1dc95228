package devicemanager

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/gpucdi/gpucdi/test/readers"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// query is asked of the metrics by something that we hand out.
type query struct {
	where, text string
	labels      []string // those that must be in its results
}

// All that we ask of the metrics is in them: Prometheus's own engine finds
// something for each query, on a node on which everything has happened that an
// admin wants to see.
func TestQueriesFindSomething(t *testing.T) {
	n, held := eventful(t)
	first := n.get(t, "/metrics")
	const application = 13
	if err := n.driver.RaiseXID(n.uuids()[7], application); err != nil { // the first one of its kind
		t.Fatal(err)
	}
	n.awaitMetric(t, fmt.Sprintf(`gpucdi_xids_total{gpu=%q,xid="13"} 1`, n.uuids()[7]))
	n.admitted(t, n.kubelet, "another", 1)
	n.awaitMetric(t, `gpucdi_kubelet_call_duration_seconds_count{code="OK",method="Allocate",resource="nvidia.com/gpu"} 2`)
	second := n.get(t, "/metrics")

	queries := slices.Concat(dashboard(t), alerts(t), documented(t))
	for i, a := range ask(t, queries, first, second) {
		q := queries[i]
		if a.Error != "" || len(a.Unknown) > 0 || len(a.Samples) == 0 {
			t.Errorf("%s: %s results in %+v", q.where, q.text, a)
		}
		for _, label := range q.labels {
			if !slices.ContainsFunc(a.Samples, func(s readers.Sample) bool { return s.Labels[label] != "" }) {
				t.Errorf("%s: %s results in %+v, without %s", q.where, q.text, a.Samples, label)
			}
		}
		if slices.ContainsFunc(a.Samples, func(s readers.Sample) bool { return s.Value == "NaN" }) {
			t.Errorf("%s: %s results in %+v", q.where, q.text, a.Samples)
		}
		if strings.HasPrefix(q.text, "increase(gpucdi_xids_total") && (len(a.Samples) != 1 || a.Samples[0].Labels["xid"] != "13") {
			t.Errorf("%s: %+v", q.text, a.Samples)
		}
		switch q.where {
		case "Who holds what":
			if len(a.Samples) != 1 || a.Samples[0].Labels["device"] != held || a.Samples[0].Labels["pod"] != "holder" {
				t.Errorf("%s: %+v", q.where, a.Samples)
			}
		case "Unhealthy":
			if len(a.Samples) != 1 || a.Samples[0].Labels["code"] != "xid_48" || a.Samples[0].Labels["gpu"] == held {
				t.Errorf("%s: %+v", q.where, a.Samples)
			}
		case "GPUUnhealthy":
			if len(a.Samples) != 1 || a.Samples[0].Labels["code"] != "xid_48" || a.Samples[0].Labels["index"] == "" {
				t.Errorf("%s: %+v", q.where, a.Samples)
			}
		}
	}
}

// Where nothing is wrong, or there is no GPU, nobody is woken up.
func TestAlertsAreSilent(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*node) error
		await   string
	}{
		"all is well": {func(*node) error { return nil }, `gpucdi_link_healthy{link="kubelet"} 1`},
		"no driver":   {func(n *node) error { return n.driver.Uninstall() }, `gpucdi_link_healthy{link="driver"} 0`},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, simdriver.H100x8())
			if err := tc.prepare(n); err != nil {
				t.Fatal(err)
			}
			startKubelet(t, n.kubeletDir, 2)
			n.startAgent(t)
			n.awaitMetric(t, tc.await)
			n.awaitMetric(t, `gpucdi_link_healthy{link="runtime"} 1`)
			metrics := n.get(t, "/metrics")
			queries := alerts(t)
			for i, a := range ask(t, queries, metrics) {
				if len(a.Samples) > 0 || a.Error != "" {
					t.Errorf("%s says %+v", queries[i].where, a)
				}
			}
		})
	}
}

// ask asks Prometheus, which has scraped these from an agent's pod. Its target
// has the labels that the operator gives it.
func ask(t *testing.T, queries []query, scrapes ...string) []readers.Answer {
	t.Helper()
	var texts []string
	for _, q := range queries {
		texts = append(texts, q.text)
	}
	answers, err := readers.Query(t.Context(), readers.Scrapes{
		Scrapes: scrapes,
		Target: map[string]string{"instance": "node", "job": "gpucdi/gpucdi", "namespace": "gpucdi",
			"pod": "gpucdi-abcde", "container": "gpucdi", "endpoint": "metrics"},
	}, texts)
	if err != nil {
		t.Fatal(err)
	}
	return answers
}

// eventful is a node without a runtime, of which one GPU is ill and one is held,
// and whose config was refused.
func eventful(t *testing.T) (n *busyNode, held string) {
	n = &busyNode{node: newNode(t, simdriver.H100x8())}
	n.runtime.stop()
	n.kubelet = startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	n.kubelet.counts(t, 8, 8)
	pod, gpus := n.admitted(t, n.kubelet, "holder", 1)
	servePods(t, n.kubeletDir, pod.Namespace, pod.Name, gpus)
	free := slices.DeleteFunc(n.uuids(), func(uuid string) bool { return uuid == gpus[0] })
	if err := n.driver.Update(func(s *simdriver.State) error {
		s.GPU(free[0]).RecoveryAction, s.GPU(free[0]).ECCCorrected = 1, 7
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := n.driver.RaiseXID(free[0], 48); err != nil {
		t.Fatal(err)
	}
	n.configure(t, "mig: {strategy: both}")
	for _, line := range []string{
		`gpucdi_devices{health="unhealthy",reason="xid_48",resource="nvidia.com/gpu"} 1`,
		`gpucdi_devices_free{resource="nvidia.com/gpu"} 6`,
		`gpucdi_device_allocated{container="main",device="` + gpus[0],
		`gpucdi_gpu_ecc_errors_total{gpu="` + free[0] + `",kind="corrected"} 7`,
		`gpucdi_config_last_reload_successful 0`,
	} {
		n.awaitMetric(t, line)
	}
	return n, gpus[0]
}

type busyNode struct {
	*node
	kubelet *kubelet
}

// named finds the labels that a text asks for.
func named(text, pattern string) (labels []string) {
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		labels = append(labels, match[1])
	}
	return labels
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// dashboard are the queries of its panels and of its variable, with all nodes
// chosen.
func dashboard(t *testing.T) (queries []query) {
	t.Helper()
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Name, Type, Query string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "deploy/gpucdi/dashboard.json")), &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			text := strings.ReplaceAll(target.Expr, "$node", ".*")
			if text == target.Expr {
				t.Errorf("%s: %s does not keep to the nodes that are chosen", p.Title, text)
			}
			queries = append(queries, query{p.Title, text, named(target.LegendFormat, `{{(\w+)}}`)})
		}
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			parts := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(v.Query)
			queries = append(queries, query{v.Name, parts[1], parts[2:]})
		}
	}
	return queries
}

func alerts(t *testing.T) (queries []query) {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "deploy/gpucdi/alerts.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			queries = append(queries, query{rule.Alert, rule.Expr, named(fmt.Sprint(rule.Annotations), `\$labels\.(\w+)`)})
		}
	}
	return queries
}

// documented are the metrics that docs/metrics.md lists, and its queries.
func documented(t *testing.T) (queries []query) {
	t.Helper()
	for line := range strings.Lines(read(t, "docs/metrics.md")) {
		cells := strings.Split(line, "|")
		switch {
		case strings.HasPrefix(line, "    "):
			queries = append(queries, query{where: "docs/metrics.md", text: strings.TrimSpace(line)})
		case len(cells) == 6 && strings.HasPrefix(cells[1], " `gpucdi_"):
			name := strings.Trim(cells[1], " `")
			if strings.TrimSpace(cells[2]) == "histogram" {
				name += "_count"
			}
			queries = append(queries, query{"docs/metrics.md", name, named(cells[3], "`(\\w+)`")})
		}
	}
	return queries
}
