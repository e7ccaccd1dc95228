package devicemanager

import (
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// An invalid config is reported by status, metrics and doctor until the file is valid again, even if its content is
// then the same as the last known good config.
func TestInvalidConfigIsReported(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	n.awaitMetric(t, "gpucdi_config_last_reload_successful 1\n")
	first := n.status(t).Config
	if first.Path != n.config || first.Loaded.IsZero() || first.Error != "" {
		t.Errorf("got config status %+v", first)
	}

	changed := time.Now()
	n.configure(t, "mig: {strategy: both}")
	invalid := n.awaitStatus(t, func(s nodeStatus) bool { return s.Config.Error != "" }).Config
	if !strings.Contains(invalid.Error, `mig.strategy: want none, single or mixed, got "both"`) || !invalid.Loaded.Before(changed) {
		t.Errorf("got config status %+v", invalid)
	}
	n.awaitMetric(t, "gpucdi_config_last_reload_successful 0\n")
	if table := n.statusText(t); !regexp.MustCompile(`(?m)^config +error +invalid config, keeping last known good: .*"both"`).MatchString(table) {
		t.Errorf("got status table\n%s", table)
	}
	if found, failed := n.doctor(t); !failed || !strings.HasPrefix(found["config"], "fail") || !strings.Contains(found["config"], `"both"`) {
		t.Errorf("got config finding %q", found["config"])
	}
	// Without the file, doctor gets the error from the agent.
	if found, failed := n.doctor(t, "--config="); !failed || !strings.Contains(found["config"], "fail") || !strings.Contains(found["config"], "keeping last known good") {
		t.Errorf("without the file: got config finding %q", found["config"])
	}
	n.awaitGet(t, "/readyz", http.StatusOK)

	n.configure(t)
	fixed := n.awaitStatus(t, func(s nodeStatus) bool { return s.Config.Error == "" }).Config
	if !fixed.Loaded.After(changed) {
		t.Errorf("got config status %+v, want it loaded after %s", fixed, changed)
	}
	n.awaitMetric(t, "gpucdi_config_last_reload_successful 1\n")
}

// An agent that starts with an invalid config uses the last known good one. Without one it keeps running, advertises
// only devices that pods may hold, as unhealthy, and applies the config once it is valid.
func TestInvalidConfigAtStart(t *testing.T) {
	t.Parallel()
	const shared = "resources: [{name: nvidia.com/gpu, replicas: 2}]"
	n := newNode(t, simdriver.H100x8())
	n.configure(t, shared)
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 16, 16)
	pod, _ := n.admitPod(t, k, "stays", 1)

	n.stopAgent(t)
	n.configure(t, "misspelled: true")
	n.startAgent(t)
	k.awaitGPUs(t, 16, 16)
	n.awaitStatus(t, func(s nodeStatus) bool {
		return strings.Contains(s.Config.Error, "last known good") && strings.Contains(s.Config.Error, "misspelled")
	})
	n.awaitMetric(t, "gpucdi_config_last_reload_successful 0\n")
	n.awaitGet(t, "/readyz", http.StatusOK)

	n.stopAgent(t)
	if err := os.RemoveAll(n.stateDir); err != nil {
		t.Fatal(err)
	}
	n.startAgent(t)
	n.awaitStatus(t, func(s nodeStatus) bool {
		isOther := func(d deviceStatus) bool { return d.State != "draining" }
		return strings.Contains(s.Config.Error, "misspelled") && len(s.Devices) > 0 && !slices.ContainsFunc(s.Devices, isOther)
	})
	k.awaitGPUs(t, 1, 0)
	n.awaitGet(t, "/readyz", http.StatusServiceUnavailable)
	if body := n.get(t, "/readyz"); !strings.Contains(body, "misspelled") {
		t.Errorf("/readyz returns %q, want the config error", body)
	}

	n.configure(t, shared)
	k.awaitGPUs(t, 16, 16)
	n.awaitGet(t, "/readyz", http.StatusOK)
	if r, err := k.start(t.Context(), pod); err != nil || len(r.cdiDevices) != 1 {
		t.Errorf("the restarted container has %v, %v; want one device", r.cdiDevices, err)
	}
}

// Sections that select by label are not applied without access to the API server. Status and doctor report the cause. A
// config without such sections does not require access.
func TestLabelSelectedConfigWithoutAPIServer(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	n.configure(t, "nodes: [{selector: a, mig: {strategy: mixed}}]")
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	const message = "sections that select by label are not applied: not in a pod with a service account"
	n.awaitStatus(t, func(s nodeStatus) bool { return strings.Contains(s.Config.LabelsError, message) })
	if table := n.statusText(t); !regexp.MustCompile(`(?m)^config +error +` + message).MatchString(table) {
		t.Errorf("got status table\n%s", table)
	}
	if found, failed := n.doctor(t); !failed || !strings.Contains(found["config"], "fail  config         the agent reports: "+message) {
		t.Errorf("got config finding %q", found["config"])
	}
	n.configure(t, "nodes: [{names: [a], mig: {strategy: mixed}}]")
	n.awaitStatus(t, func(s nodeStatus) bool { return s.Config.LabelsError == "" })
	if found, _ := n.doctor(t); !strings.HasPrefix(found["config"], "pass") {
		t.Errorf("got config finding %q", found["config"])
	}
}
