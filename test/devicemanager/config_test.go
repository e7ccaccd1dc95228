package devicemanager

import (
	"net/http"
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
	if table := n.statusText(t); !regexp.MustCompile(`(?m)^config +trouble +kept as it was: .*"both"`).MatchString(table) {
		t.Errorf("the table is\n%s", table)
	}
	if found, _ := n.doctor(t); !strings.HasPrefix(found["agent"], "warn") || !strings.Contains(found["agent"], "kept as it was") {
		t.Errorf("the doctor says of the agent %q", found["agent"])
	}
	n.awaitGet(t, "/readyz", http.StatusOK)

	n.configure(t)
	mended := n.awaitStatus(t, func(s nodeStatus) bool { return s.Config.Trouble == "" }).Config
	if !mended.Loaded.After(wrong) {
		t.Errorf("the config is %+v, and was wrong at %s", mended, wrong)
	}
	n.awaitMetric(t, "gpucdi_config_last_reload_successful 1\n")
}
