package devicemanager

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// doctor runs gpucdi doctor on the node and returns its findings by check, and whether it failed.
func (n *node) doctor(t *testing.T, flags ...string) (findings map[string]string, failed bool) {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"doctor", "--host-root", n.root, "--kubelet-dir", n.kubeletDir, "--cdi-dir", n.cdiDir,
		"--address", n.address, "--config", n.config, "--node-name", "node"}, flags...)...)
	cmd.Env = append(os.Environ(), n.driver.Env("")...)
	out, err := cmd.Output()
	t.Logf("gpucdi doctor: %v\n%s", err, out)
	findings = map[string]string{}
	var check string
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, " ") {
			check = strings.TrimSpace(line[6:19])
		}
		findings[check] += line // indented lines are remedies
	}
	return findings, err != nil
}

// On a healthy node all checks pass, except for two that do not apply: driver 580 has no memory limits, and the
// isolation check requires shared GPUs. Each fault makes its check fail, including a stopped agent.
func TestDoctor(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	pod, held := n.admitPod(t, k, "holder", 1)
	servePodResources(t, n.kubeletDir, pod.Namespace, pod.Name, held)
	n.awaitGet(t, "/readyz", http.StatusOK)
	findings, failed := n.doctor(t)
	if failed || len(findings) != 14 {
		t.Errorf("got %d checks (failed: %t), want 14 without a failure", len(findings), failed)
	}
	for check, finding := range findings {
		want := "pass"
		if check == "memory limits" || check == "isolation" {
			want = "skip"
		}
		if !strings.HasPrefix(finding, want) {
			t.Errorf("%s: %s", check, finding)
		}
	}
	faulty := n.uuids()[5]
	for _, tc := range []struct {
		name    string
		inject  func() error
		check   string
		finding string
	}{
		{"a GPU fails", func() error { return n.driver.InjectFault(simdriver.Fault{GPU: faulty, Return: unknownError}) }, "GPUs", "GPU 5"},
		{"the driver hangs", func() error {
			return n.driver.Update(func(s *simdriver.State) error {
				s.Faults = []simdriver.Fault{{Func: "nvmlInit_v2", Hang: time.Hour}}
				return nil
			})
		}, "NVML", "unresponsive"},
		{"the module is unloaded", func() error {
			if err := n.driver.ClearFaults(); err != nil {
				return err
			}
			return n.driver.Unload()
		}, "kernel module", "modprobe"},
		{"a conflicting spec", func() error {
			if err := n.driver.Load(); err != nil {
				return err
			}
			spec, err := os.ReadFile(filepath.Join(n.cdiDir, "gpucdi.dev-gpu.json"))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(n.cdiDir, "foreign.json"), spec, 0o644)
		}, "CDI spec", "foreign.json"},
		{"the agent is stopped", func() error { n.stopAgent(t); return nil }, "agent", "start gpucdi serve"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.inject(); err != nil {
				t.Fatal(err)
			}
			findings, failed := n.doctor(t)
			if got := findings[tc.check]; !failed || !strings.HasPrefix(got, "fail") || !strings.Contains(got, tc.finding) {
				t.Errorf("%s: got %s, want %q", tc.check, got, tc.finding)
			}
		})
	}
}

// NVML does not list a GPU whose device node it cannot open; doctor reports the GPU as missing. A GPU that NVML lists
// but cannot read has another finding, and is not reported as missing.
func TestDoctorReportsMissingGPU(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	g := n.driver.State().GPUs[5]
	for _, faults := range [][]simdriver.Fault{nil, {{GPU: g.UUID, Return: unknownError}}} {
		if err := n.driver.Update(func(s *simdriver.State) error { s.Faults = faults; return nil }); err != nil {
			t.Fatal(err)
		}
		found, _ := n.doctor(t)
		if !strings.HasPrefix(found["NVML"], "pass") || strings.Contains(found["NVML"], "warn") {
			t.Errorf("faults %v: got %s", faults, found["NVML"])
		}
		if failing := strings.Contains(found["GPUs"], "GPU 5"); failing != (faults != nil) {
			t.Errorf("faults %v: got %s", faults, found["GPUs"])
		}
	}
	if err := n.driver.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(n.root, fmt.Sprintf("dev/nvidia%d", g.Minor))); err != nil {
		t.Fatal(err)
	}
	found, _ := n.doctor(t)
	address := strings.ToLower(strings.TrimPrefix(g.BusID, "0000")) // the PCI domain has eight digits in NVML
	if want := "NVML does not list " + address + ", which the kernel driver lists"; !strings.Contains(found["NVML"], want) {
		t.Errorf("got %s\nwant %q", found["NVML"], want)
	}
}
