package devicemanager

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// doctor runs gpucdi doctor on the node, with further flags, and returns what it reports of
// each link.
func (n *node) doctor(t *testing.T, flags ...string) (findings map[string]string, fails bool) {
	t.Helper()
	cmd := exec.Command(binary, append([]string{"doctor", "--host-root", n.root, "--kubelet-dir", n.kubeletDir, "--cdi-dir", n.cdiDir,
		"--address", n.address, "--config", n.config, "--node-name", "node"}, flags...)...)
	cmd.Env = append(os.Environ(), n.driver.Env("")...)
	out, err := cmd.Output()
	t.Logf("gpucdi doctor: %v\n%s", err, out)
	findings = map[string]string{}
	var link string
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, " ") {
			link = strings.TrimSpace(line[6:19])
		}
		findings[link] += line // with the advice in its own
	}
	return findings, err != nil
}

// On a node where all is well the doctor finds nothing; each thing that breaks
// shows at its link, whether the agent runs or not.
func TestDoctor(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	k := startKubelet(t, n.kubeletDir, 2)
	n.startAgent(t)
	k.counts(t, 8, 8)
	pod, held := n.admitted(t, k, "holder", 1)
	servePods(t, n.kubeletDir, pod.Namespace, pod.Name, held)
	n.awaitGet(t, "/readyz", http.StatusOK)
	found, fails := n.doctor(t)
	if fails || len(found) != 11 {
		t.Errorf("the doctor fails: %t, over %d links, want 11", fails, len(found))
	}
	for link, said := range found {
		if !strings.HasPrefix(said, "pass") {
			t.Errorf("%s: %s", link, said)
		}
	}
	sick := n.uuids()[5]
	for _, tc := range []struct {
		name   string
		happen func() error
		link   string
		says   string
	}{
		{"a GPU fails", func() error { return n.driver.Break(simdriver.Fault{GPU: sick, Return: unknownError}) }, "GPUs", "GPU 5"},
		{"the driver hangs", func() error {
			return n.driver.Update(func(s *simdriver.State) error {
				s.Faults = []simdriver.Fault{{Func: "nvmlInit_v2", Hang: 1 << 40}}
				return nil
			})
		}, "NVML", "unresponsive"},
		{"the module is unloaded", func() error {
			if err := n.driver.Mend(); err != nil {
				return err
			}
			return n.driver.Unload()
		}, "kernel module", "modprobe"},
		{"a foreign spec", func() error {
			if err := n.driver.Load(); err != nil {
				return err
			}
			spec, err := os.ReadFile(filepath.Join(n.cdiDir, "gpucdi.dev-gpu.json"))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(n.cdiDir, "foreign.json"), spec, 0o644)
		}, "CDI spec", "foreign.json"},
		{"the agent ends", func() error { n.stopAgent(t); return nil }, "agent", "no agent answers"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.happen(); err != nil {
				t.Fatal(err)
			}
			found, fails := n.doctor(t)
			if said := found[tc.link]; !fails || !strings.HasPrefix(said, "fail") || !strings.Contains(said, tc.says) {
				t.Errorf("%s: %s, want %q", tc.link, said, tc.says)
			}
		})
	}
}

// NVML keeps silent about a GPU whose node it cannot open; the doctor does not. One that NVML
// counts is not missed, even if it tells nothing: that is a finding of its own.
func TestDoctorMissesAGPU(t *testing.T) {
	n := newNode(t, simdriver.H100x8())
	g := n.driver.State().GPUs[5]
	for _, faults := range [][]simdriver.Fault{nil, {{GPU: g.UUID, Return: unknownError}}} {
		if err := n.driver.Update(func(s *simdriver.State) error { s.Faults = faults; return nil }); err != nil {
			t.Fatal(err)
		}
		found, _ := n.doctor(t)
		if !strings.HasPrefix(found["NVML"], "pass") || strings.Contains(found["NVML"], "warn") {
			t.Errorf("with the faults %v it says: %s", faults, found["NVML"])
		}
		if failing := strings.Contains(found["GPUs"], "GPU 5"); failing != (faults != nil) {
			t.Errorf("with the faults %v it says: %s", faults, found["GPUs"])
		}
	}
	if err := n.driver.Mend(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(n.root, fmt.Sprintf("dev/nvidia%d", g.Minor))); err != nil {
		t.Fatal(err)
	}
	found, _ := n.doctor(t)
	address := strings.ToLower(strings.TrimPrefix(g.BusID, "0000")) // NVML writes it with eight digits before the colon
	if want := "it does not list " + address + ", which the kernel's driver has"; !strings.Contains(found["NVML"], want) {
		t.Errorf("%s\ndoes not have %q", found["NVML"], want)
	}
}
