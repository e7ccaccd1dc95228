package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/readers"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// alertCase is a fault for which alerts fire until it ends.
type alertCase struct {
	alerts        []string // names, sorted
	labels        []string // "name=value", of each alert
	reasons       []string // sorted values of the label reason, one for each alert; not checked if empty
	fault, end    func()
	during, after string // start of a metrics line during the fault and after its end; "" if the agent does not respond
}

// alertsFire injects a fault for each alert. Prometheus evaluates the rules on the metrics before, during and after
// each fault, as if each fault lasted 12 minutes and the time after it 20 minutes.
func alertsFire(t *testing.T, c *cluster) {
	cases := c.alertCases(t)
	var covered []string
	for _, tc := range cases {
		covered = append(covered, tc.alerts...)
	}
	rules, err := os.ReadFile("../../deploy/gpucdi/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(rules)) {
		if _, name, found := strings.Cut(strings.TrimSpace(line), "- alert: "); found && !slices.Contains(covered, name) {
			t.Errorf("no fault for alert %s", name)
		}
	}

	s := readers.Scenario{Rules: string(rules), Target: map[string]string{"instance": "node", "job": "gpucdi/gpucdi"}}
	const faultDuration, healthyDuration = 12 * time.Minute, 20 * time.Minute
	record := func(scrape string, duration time.Duration) {
		s.Phases = append(s.Phases, readers.Phase{Scrape: scrape, Duration: duration})
	}
	record(c.metrics(t), healthyDuration)
	for _, tc := range cases {
		tc.fault()
		record(c.awaitScrape(t, tc.during), faultDuration)
		tc.end()
		record(c.awaitScrape(t, tc.after), healthyDuration)
		c.awaitGPUs(t, "8")
	}
	result, err := readers.Prometheus(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	checkAlerts(t, "before the first fault", result.Alerts[0], alertCase{})
	for i, tc := range cases {
		checkAlerts(t, "during the fault", result.Alerts[1+2*i], tc)
		checkAlerts(t, "after the fault for "+strings.Join(tc.alerts, ", "), result.Alerts[2+2*i], alertCase{})
	}
}

func (c *cluster) alertCases(t *testing.T) []alertCase {
	gpu := c.driver.State().GPUs[5]
	update := func(change func(g *simdriver.GPU)) func() {
		return func() {
			t.Helper()
			if err := c.driver.Update(func(s *simdriver.State) error { change(s.GPU(gpu.UUID)); return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const (
		unknownError = 999 // NVML_ERROR_UNKNOWN

		// nvmlClocksEventReason…
		swPowerCap, swThermalSlowdown, hwThermalSlowdown, hwPowerBrakeSlowdown = 0x4, 0x20, 0x40, 0x80

		conflict = `{"cdiVersion": "0.5.0", "kind": "gpucdi.dev/gpu", "devices": [{"name": "all", "containerEdits": {"env": ["A=1"]}}]}`
		healthy  = `gpucdi_devices{health="healthy",reason="",resource="nvidia.com/gpu"} 8`
	)
	spec := c.Box.Path(filepath.Join(cdiDir, "conflict.json"))
	var removed simdriver.GPU
	return []alertCase{
		{
			alerts: []string{"GPUUnhealthy", "GPUXID"}, labels: []string{"gpu=" + gpu.UUID, "index=5"},
			fault: func() {
				c.setRecoveryAction(t, gpu.UUID, simdriver.RecoveryReset)
				must(c.driver.RaiseXID(gpu.UUID, 48))
				c.awaitOutput(t, `gpucdi_gpu_recovery_action{action="reset",gpu="`+gpu.UUID+`"} 1`, c.metrics)
			},
			during: `gpucdi_gpu_healthy{code="xid_48",gpu="` + gpu.UUID + `"} 0`,
			end:    func() { c.setRecoveryAction(t, gpu.UUID, simdriver.RecoveryNone) },
			after:  healthy,
		},
		{
			alerts: []string{"GPUUncorrectedErrors"}, labels: []string{"gpu=" + gpu.UUID},
			fault:  update(func(g *simdriver.GPU) { g.ECCUncorrected = 3 }),
			during: `gpucdi_gpu_ecc_errors_total{gpu="` + gpu.UUID + `",kind="uncorrected"} 3`,
			end:    update(func(g *simdriver.GPU) { g.ECCUncorrected = 0 }),
			after:  `gpucdi_gpu_ecc_errors_total{gpu="` + gpu.UUID + `",kind="uncorrected"} 0`,
		},
		{
			alerts: []string{"GPUThrottled"}, labels: []string{"gpu=" + gpu.UUID},
			reasons: []string{"hw_power_brake", "hw_thermal", "sw_thermal"},
			fault: update(func(g *simdriver.GPU) {
				g.ClocksEvents = swPowerCap | swThermalSlowdown | hwThermalSlowdown | hwPowerBrakeSlowdown
			}),
			during: `gpucdi_gpu_clocks_event{gpu="` + gpu.UUID + `",reason="hw_thermal"} 1`,
			end:    update(func(g *simdriver.GPU) { g.ClocksEvents = gpu.ClocksEvents }),
			after:  `gpucdi_gpu_clocks_event{gpu="` + gpu.UUID + `",reason="hw_thermal"} 0`,
		},
		{
			alerts: []string{"GPUComponentUnhealthy", "GPUUnhealthy"},
			fault:  func() { must(os.WriteFile(spec, []byte(conflict), 0o600)) },
			during: `gpucdi_component_healthy{component="spec"} 0`,
			end:    func() { must(os.Remove(spec)) },
			after:  healthy,
		},
		{
			alerts: []string{"GPUConfigRefused"},
			fault:  func() { c.configure(t, "mig: {strategy: both}\n") },
			during: "gpucdi_config_last_reload_successful 0",
			end:    func() { c.configure(t, "") },
			after:  "gpucdi_config_last_reload_successful 1",
		},
		{
			alerts: []string{"GPUAgentDown"},
			fault:  func() { c.sh(t, "pkill -STOP -x gpucdi") },
			during: "",
			end:    func() { c.sh(t, "pkill -CONT -x gpucdi") },
			after:  healthy,
		},
		{
			alerts: []string{"GPUCountDropped", "GPUUnreadable"},
			fault: func() {
				var err error
				removed, err = c.driver.Remove(c.driver.State().GPUs[7].UUID)
				must(err)
				must(c.driver.InjectFault(simdriver.Fault{GPU: gpu.UUID, Func: "nvmlDeviceGetUUID", Return: unknownError}))
				c.restartAgent(t)
				// The agent detects the runtime some time after it has started.
				c.awaitOutput(t, `gpucdi_component_healthy{component="runtime"} 1`, c.metrics)
			},
			during: "gpucdi_unreadable_devices 1",
			end:    func() { must(c.driver.ClearFaults()); must(c.driver.Add(removed)) },
			after:  healthy,
		},
	}
}

// awaitScrape waits until a line of the agent's metrics starts with sample, and returns the metrics. If sample is "",
// it waits until the agent stops responding.
func (c *cluster) awaitScrape(t *testing.T, sample string) (scrape string) {
	t.Helper()
	await(t, "metrics with "+sample, func() (string, bool) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		out, err := c.Kubectl(ctx, "get", "--raw", "/api/v1/namespaces/gpucdi/pods/"+c.agentPod(t)+":9435/proxy/metrics")
		if err != nil {
			scrape = ""
			return err.Error(), sample == ""
		}
		scrape = string(out)
		return scrape, sample != "" && strings.Contains(scrape, "\n"+sample)
	})
	return scrape
}

// checkAlerts checks which alerts fire, their labels and their annotations.
func checkAlerts(t *testing.T, when string, got []readers.Alert, want alertCase) {
	t.Helper()
	var names, reasons []string
	for _, a := range got {
		names, reasons = append(names, a.Name), append(reasons, a.Labels["reason"])
		for _, label := range want.labels {
			if name, value, _ := strings.Cut(label, "="); a.Labels[name] != value {
				t.Errorf("%s, alert %s has labels %v, want %s", when, a.Name, a.Labels, label)
			}
		}
		if text := a.Annotations["summary"] + a.Annotations["description"]; strings.Contains(text, "<no value>") || strings.Contains(text, "error") && strings.Contains(text, "template") {
			t.Errorf("%s, alert %s has annotations %v", when, a.Name, a.Annotations)
		}
	}
	slices.Sort(reasons)
	if len(want.reasons) > 0 && !slices.Equal(reasons, want.reasons) {
		t.Errorf("%s, alerts fire for the reasons %v, want %v", when, reasons, want.reasons)
	}
	if names = slices.Compact(names); !slices.Equal(names, want.alerts) {
		t.Errorf("%s, %v fire, want %v:\n%v", when, names, want.alerts, got)
	}
}
