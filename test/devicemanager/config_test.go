package devicemanager

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// Who looks sees that a config was refused, until the file is right again, be it
// as it was.
func TestARefusedConfigIsSeen(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 8, 8)
	n.awaitMetric(t, "gpucdi_config_last_reload_successful 1\n")
	first := n.status(t).Config
	if first.Path != n.config || first.Loaded.IsZero() || first.Trouble != "" {
		t.Errorf("the config is %+v", first)
	}

	wrong := time.Now()
	n.configure(t, "mig: {strategy: both}")
	refused := n.awaitStatus(t, func(s nodeStatus) bool { return s.Config.Trouble != "" }).Config
	if !strings.Contains(refused.Trouble, `mig.strategy is "both"`) || !refused.Loaded.Before(wrong) {
		t.Errorf("the config is %+v", refused)
	}
	n.awaitMetric(t, "gpucdi_config_last_reload_successful 0\n")
	if table := n.statusText(t); !regexp.MustCompile(`(?m)^config +trouble +invalid config, keeping last known good: .*"both"`).MatchString(table) {
		t.Errorf("the table is\n%s", table)
	}
	if found, fails := n.doctor(t); !fails || !strings.HasPrefix(found["config"], "fail") || !strings.Contains(found["config"], `"both"`) {
		t.Errorf("the doctor reports of the config %q", found["config"])
	}
	// One that reads another file, or none, reports it too.
	if found, fails := n.doctor(t, "--config="); !fails || !strings.Contains(found["config"], "fail") || !strings.Contains(found["config"], "keeping last known good") {
		t.Errorf("the doctor without the config reports %q", found["config"])
	}
	n.awaitGet(t, "/readyz", http.StatusOK)

	n.configure(t)
	mended := n.awaitStatus(t, func(s nodeStatus) bool { return s.Config.Trouble == "" }).Config
	if !mended.Loaded.After(wrong) {
		t.Errorf("the config is %+v, and was wrong at %s", mended, wrong)
	}
	n.awaitMetric(t, "gpucdi_config_last_reload_successful 1\n")
}

// An agent that starts with an invalid config uses the last known good one, and without one it
// lists only what pods may hold, as unhealthy; it does not end, and takes the config up when it
// is fixed.
func TestAnInvalidConfigAtTheStart(t *testing.T) {
	const shared = "resources: [{name: nvidia.com/gpu, replicas: 2}]"
	n := newNode(t, simdriver.H100x8())
	n.configure(t, shared)
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 16, 16)
	pod, _ := n.admitted(t, k, "stays", 1)

	n.stopAgent(t)
	n.configure(t, "misspelled: true")
	n.startAgent(t)
	k.counts(t, 16, 16)
	n.awaitStatus(t, func(s nodeStatus) bool {
		return strings.Contains(s.Config.Trouble, "last known good") && strings.Contains(s.Config.Trouble, "misspelled")
	})
	n.awaitMetric(t, "gpucdi_config_last_reload_successful 0\n")
	n.awaitGet(t, "/readyz", http.StatusOK)

	n.stopAgent(t)
	if err := os.RemoveAll(n.stateDir); err != nil {
		t.Fatal(err)
	}
	n.startAgent(t)
	k.counts(t, 1, 0)
	n.awaitStatus(t, func(s nodeStatus) bool { return strings.Contains(s.Config.Trouble, "misspelled") })
	k.counts(t, 1, 0)
	n.awaitGet(t, "/readyz", http.StatusServiceUnavailable)
	if why := n.get(t, "/readyz"); !strings.Contains(why, "misspelled") {
		t.Errorf("/readyz explains itself with %q", why)
	}

	n.configure(t, shared)
	k.counts(t, 16, 16)
	n.awaitGet(t, "/readyz", http.StatusOK)
	if r, err := k.start(t.Context(), pod); err != nil || len(r.cdiDevices) != 1 {
		t.Errorf("the pod's container restarts with %v, %v", r.cdiDevices, err)
	}
}

// Without an API server no section applies by the node's labels. People who look see that,
// and why; a config that has no such section does not need one.
func TestSectionsByLabelWithoutLabels(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	n.configure(t, "nodes: [{selector: a, mig: {strategy: mixed}}]")
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 8, 8)
	const says = "sections that select by label are not applied: not in a pod with a service account"
	n.awaitStatus(t, func(s nodeStatus) bool { return strings.Contains(s.Config.LabelsTrouble, says) })
	if table := n.statusText(t); !regexp.MustCompile(`(?m)^config +trouble +` + says).MatchString(table) {
		t.Errorf("the table is\n%s", table)
	}
	if found, fails := n.doctor(t); !fails || !strings.Contains(found["config"], "fail  config         in the agent, "+says) {
		t.Errorf("the doctor reports of the config %q", found["config"])
	}
	n.configure(t, "nodes: [{names: [a], mig: {strategy: mixed}}]")
	n.awaitStatus(t, func(s nodeStatus) bool { return s.Config.LabelsTrouble == "" })
	if found, _ := n.doctor(t); !strings.HasPrefix(found["config"], "pass") {
		t.Errorf("the doctor reports of the config %q", found["config"])
	}
}
