package doctor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/gpucdi/gpucdi/doctor"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	moduleFile = "proc/driver/nvidia/version"
	library    = "usr/lib64/libnvidia-ml.so.1"
	module     = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\n"
	openModule = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
)

// examine returns the last finding of each check on a node with these files, by path below its root. The content
// "→target" creates a symbolic link. configure, if not nil, changes the Node.
func examine(t *testing.T, files map[string]string, configure func(*doctor.Node)) map[string]doctor.Finding {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, link := strings.CutPrefix(content, "→"); link {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(content), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	node := doctor.Node{
		Root:       host.NewRoot(root),
		KubeletDir: filepath.Join(root, "kubelet"),
		CDIDir:     filepath.Join(root, "cdi"),
		Address:    "127.0.0.1:1",
		Worker:     "false",
		Name:       "node",
		Labels:     func(context.Context) (map[string]string, error) { return nil, errors.New("forbidden") },
		Launch:     &doctor.Launch{},
	}
	if _, has := files["config.yaml"]; has {
		node.ConfigFile = filepath.Join(root, "config.yaml")
	}
	if configure != nil {
		configure(&node)
	}
	found := map[string]doctor.Finding{}
	doctor.Examine(t.Context(), node, func(f doctor.Finding) { found[f.Check] = f })
	return found
}

var allChecks = []string{"CDI edits", "CDI spec", "GPUs", "NVML", "agent", "config", "container", "containers", "driver files", "hardware", "isolation", "kernel module", "kubelet", "memory limits", "runtime"}

// On a Kubernetes node where nothing works, each check has a finding, and each failed one has a remedy.
func TestEmptyNode(t *testing.T) {
	found := examine(t, map[string]string{"config.yaml": "misspelled: 1", "kubelet/config.yaml": ""}, nil)
	if checks := slices.Sorted(maps.Keys(found)); !slices.Equal(checks, allChecks) {
		t.Errorf("checks %q, want %q", checks, allChecks)
	}
	for check, f := range found {
		want := doctor.Fail
		switch check {
		case "hardware":
			want = doctor.Warn
		case "NVML", "GPUs", "memory limits", "isolation", "CDI edits", "container", "containers":
			want = doctor.Skip
		}
		if f.Verdict != want || f.Message == "" {
			t.Errorf("%+v, want %s", f, want)
		}
		if text := f.Message + f.Remedy; f.Verdict == doctor.Fail && !strings.Contains(text, "install") &&
			!strings.Contains(text, "run ") && !strings.Contains(text, "start ") && !strings.Contains(text, "serve") && !strings.Contains(text, "fix") {
			t.Errorf("%s has no remedy: %s %s", check, f.Message, f.Remedy)
		}
	}
}

// Without a kubelet directory and an agent, the checks that concern Kubernetes are skipped with the reason.
func TestHostWithoutKubernetes(t *testing.T) {
	kubernetes := []string{"CDI spec", "agent", "container", "containers", "kubelet", "runtime"}
	found := examine(t, nil, nil)
	if checks := slices.Sorted(maps.Keys(found)); !slices.Equal(checks, allChecks) {
		t.Errorf("checks %q, want %q", checks, allChecks)
	}
	for check, f := range found {
		skipped := f.Verdict == doctor.Skip && strings.Contains(f.Message, "no kubelet directory")
		if want := slices.Contains(kubernetes, check); skipped != want {
			t.Errorf("%+v: skipped %t, want %t", f, skipped, want)
		}
	}
	for name, configure := range map[string]func(*doctor.Node){
		"a kubelet directory on the node": func(n *doctor.Node) { n.KubeletDir = "/only-on-the-node" },
		"an agent":                        func(n *doctor.Node) { n.Address = agentWith(t, status.Config{}) },
	} {
		found := examine(t, map[string]string{"only-on-the-node/config.yaml": ""}, configure)
		if f := found["kubelet"]; f.Verdict != doctor.Fail {
			t.Errorf("with %s: %+v, want %s", name, f, doctor.Fail)
		}
	}
}

func TestChecks(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string
		check string
		want  doctor.Verdict
		text  string // in the message
	}{
		{"a GPU", map[string]string{"sys/bus/pci/devices/0000:18:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:18:00.0/class": "0x030200\n"},
			"hardware", doctor.Pass, "1 NVIDIA GPU is"},
		{"a GPU of another vendor", map[string]string{"sys/bus/pci/devices/0000:18:00.0/vendor": "0x8086\n", "sys/bus/pci/devices/0000:18:00.0/class": "0x030000\n"},
			"hardware", doctor.Warn, "no NVIDIA GPU"},
		{"an NVIDIA audio device", map[string]string{"sys/bus/pci/devices/0000:18:00.1/vendor": "0x10de\n", "sys/bus/pci/devices/0000:18:00.1/class": "0x040300\n"},
			"hardware", doctor.Warn, "no NVIDIA GPU"},
		{"the module", map[string]string{moduleFile: module}, "kernel module", doctor.Pass, "580.95.05"},
		{"the open module", map[string]string{moduleFile: openModule}, "kernel module", doctor.Pass, "580.95.05"},
		{"an unknown module version", map[string]string{moduleFile: "?"}, "kernel module", doctor.Fail, "no version found"},
		{"files of the same version", map[string]string{moduleFile: module, library: "→libnvidia-ml.so.580.95.05", "usr/lib64/libnvidia-ml.so.580.95.05": ""},
			"driver files", doctor.Pass, "libnvidia-ml.so.580.95.05"},
		{"files of another version", map[string]string{moduleFile: module, library: "→libnvidia-ml.so.590.12.34", "usr/lib64/libnvidia-ml.so.590.12.34": ""},
			"driver files", doctor.Fail, "580.95.05"},
		{"a library without a version", map[string]string{moduleFile: module, library: ""}, "driver files", doctor.Pass, library},
		{"a library that cannot be loaded", map[string]string{moduleFile: module, library: ""}, "NVML", doctor.Fail, "exited"},
		{"an invalid spec", map[string]string{"cdi/gpucdi.dev-gpu.json": "{", "kubelet/config.yaml": ""}, "CDI spec", doctor.Fail, "reading the CDI spec"},
		{"a kubelet without pod resources", map[string]string{"kubelet/device-plugins/kubelet.sock": ""}, "kubelet", doctor.Warn, "pod-resources"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := examine(t, tc.files, nil)[tc.check]
			if f.Verdict != tc.want || !strings.Contains(f.Message, tc.text) {
				t.Errorf("%+v, want %s and %q", f, tc.want, tc.text)
			}
		})
	}
}

// newWorker returns the path of a driver worker that sends these fields of its first message.
func newWorker(t *testing.T, fields string) string {
	t.Helper()
	worker := filepath.Join(t.TempDir(), "worker") // its messages are written to file descriptor 4
	script := fmt.Sprintf("#!/bin/sh\necho '{%s,\"cycle\":true}' >&4\nread -r _\n", fields)
	if err := os.WriteFile(worker, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return worker
}

// The remedy of a fault that recovers by itself states the quiet period of the config.
func TestRemedyStatesQuietPeriod(t *testing.T) {
	worker := newWorker(t, `"inventory":{"gpus":[{"uuid":"GPU-a"}]},"probes":{"GPU-a":{"failed":"unknown error"}}`)
	files := map[string]string{"config.yaml": "health: {quietPeriod: 3m}", library: ""}
	f := examine(t, files, func(n *doctor.Node) { n.Worker = worker })["GPUs"]
	if f.Verdict != doctor.Fail || !strings.Contains(f.Message, "unknown error") || !strings.Contains(f.Remedy, "3m0s") {
		t.Errorf("%+v, want unknown error, and a remedy with 3m0s", f)
	}
}

// withGPUs returns the findings on a node with these GPUs and this config. Each GPU has 80 GiB.
func withGPUs(t *testing.T, platform gpu.Platform, config string, limits ...gpu.MemoryLimits) map[string]doctor.Finding {
	t.Helper()
	inventory := gpu.Inventory{Platform: platform, GPUs: []gpu.GPU{}}
	for i, l := range limits {
		inventory.GPUs = append(inventory.GPUs, gpu.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, MIG: gpu.MIGDisabled, MemoryBytes: 80 << 30, MemoryLimits: l})
	}
	encoded, err := json.Marshal(inventory)
	if err != nil {
		t.Fatal(err)
	}
	worker := newWorker(t, fmt.Sprintf(`"inventory":%s,"probes":{}`, encoded))
	return examine(t, map[string]string{"config.yaml": config, library: ""}, func(n *doctor.Node) { n.Worker = worker })
}

// The check of memory limits has the reasons why they cannot be set, in one line.
func TestMemoryLimits(t *testing.T) {
	for _, tc := range []struct {
		platform gpu.Platform
		limits   []gpu.MemoryLimits // of the GPUs
		want     doctor.Verdict
		message  string
	}{
		{"", []gpu.MemoryLimits{gpu.MemoryLimitsSupported, gpu.MemoryLimitsSupported}, doctor.Pass, "can be set for pods on all GPUs"},
		{"", []gpu.MemoryLimits{gpu.MemoryLimitsOldDriver, gpu.MemoryLimitsOldDriver}, doctor.Skip, "cannot be set: the driver is older than 615; install a newer one"},
		{"", []gpu.MemoryLimits{gpu.MemoryLimitsCgroupV1}, doctor.Skip, "cannot be set: the node uses cgroup v1; boot it with cgroup v2"},
		{"", []gpu.MemoryLimits{gpu.MemoryLimitsNoPods}, doctor.Skip, "cannot be set: pods have no cgroups; start the kubelet with cgroupsPerQOS: true and a cgroupRoot of at most one level in its config"},
		{"", []gpu.MemoryLimits{gpu.MemoryLimitsSupported, gpu.MemoryLimitsMIG}, doctor.Skip, "cannot be set: GPU 1: the GPU is in MIG mode; MIG devices have memory of their own"},
		{"", []gpu.MemoryLimits{gpu.MemoryLimitsUnsupported}, doctor.Skip, "cannot be set: the GPU does not support memory limits"},
		{"", []gpu.MemoryLimits{gpu.MemoryLimitsSupported, ""}, doctor.Skip, "requires that all GPUs can be read"},
		{"", nil, doctor.Skip, "requires that all GPUs can be read"},
		{gpu.WSL2, []gpu.MemoryLimits{""}, doctor.Skip, "platform wsl2: not possible"},
	} {
		if f := withGPUs(t, tc.platform, "", tc.limits...)["memory limits"]; f.Verdict != tc.want || f.Message != tc.message {
			t.Errorf("platform %q, limits %q: %+v, want %s: %s", tc.platform, tc.limits, f, tc.want, tc.message)
		}
	}
}

// The check of the isolation has the weakest levels of the devices that the config shares.
func TestIsolation(t *testing.T) {
	const limited, weakest = "resources: [{name: nvidia.com/gpu, replicas: 4, limits: memory, level: any}]", "weakest isolation of shared devices: "
	const supported, old = gpu.MemoryLimitsSupported, gpu.MemoryLimitsOldDriver
	for _, tc := range []struct {
		config  string
		limits  []gpu.MemoryLimits // of the GPUs
		want    doctor.Verdict
		message string
	}{
		{"", []gpu.MemoryLimits{supported}, doctor.Skip, "the config shares no GPU"},
		{"resources: [{name: nvidia.com/gpu, replicas: 4}]", []gpu.MemoryLimits{supported}, doctor.Pass, weakest + "memory none, compute timeslice"},
		{limited, []gpu.MemoryLimits{supported, supported}, doctor.Pass, weakest + "memory driver, compute timeslice"},
		{limited, []gpu.MemoryLimits{old, supported}, doctor.Pass, weakest + "memory none, compute timeslice"},
		{limited, []gpu.MemoryLimits{supported, old}, doctor.Pass, weakest + "memory none, compute timeslice"},
		{"resources: [{name: nvidia.com/gpu, replicas: 4, limits: memory+compute, failRequestsGreaterThanOne: true}]", []gpu.MemoryLimits{supported},
			doctor.Pass, weakest + "memory driver, compute ceiling"},
	} {
		if f := withGPUs(t, "", tc.config, tc.limits...)["isolation"]; f.Verdict != tc.want || f.Message != tc.message {
			t.Errorf("config %q, limits %q: %+v, want %s: %s", tc.config, tc.limits, f, tc.want, tc.message)
		}
	}
}

// agentWith serves the status of an agent with this config.
func agentWith(t *testing.T, c status.Config) (address string) {
	t.Helper()
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(status.Node{Config: c})
	}))
	t.Cleanup(agent.Close)
	return strings.TrimPrefix(agent.URL, "http://")
}

// The config check passes only if the agent has applied the file.
func TestConfig(t *testing.T) {
	const byLabel = "nodes:\n- section: large\n  mig: {strategy: mixed}\n"
	labels := func(labels map[string]string, err error) func(context.Context) (map[string]string, error) {
		return func(context.Context) (map[string]string, error) { return labels, err }
	}
	forbidden := labels(nil, errors.New("nodes is forbidden"))
	for name, tc := range map[string]struct {
		file   string // empty: none
		labels func(context.Context) (map[string]string, error)
		agent  *status.Config // nil: no agent; Path defaults to the file
		want   doctor.Verdict
		texts  []string // in the message or the remedy
	}{
		"no file":                   {"", forbidden, nil, doctor.Pass, []string{"default"}},
		"a valid file":              {"mig: {strategy: mixed}", forbidden, &status.Config{}, doctor.Pass, []string{"config.yaml"}},
		"an invalid file":           {"mig: {strategy: both}", forbidden, &status.Config{}, doctor.Fail, []string{`"both"`, "config check"}},
		"not applied":               {"mig: {strategy: mixed}", forbidden, &status.Config{Error: "keeping last known good: no such strategy"}, doctor.Fail, []string{"no such strategy"}},
		"another file in the agent": {"mig: {strategy: mixed}", forbidden, &status.Config{Path: "/other.yaml"}, doctor.Warn, []string{"/other.yaml", "--config"}},
		"a file only in the agent":  {"", forbidden, &status.Config{Path: "/other.yaml"}, doctor.Warn, []string{"/other.yaml", "--config"}},

		"a section by label":            {byLabel, labels(map[string]string{"nvidia.com/device-plugin.config": "large"}, nil), &status.Config{}, doctor.Pass, nil},
		"a missing section":             {byLabel, labels(map[string]string{"nvidia.com/device-plugin.config": "small"}, nil), &status.Config{}, doctor.Warn, []string{"small"}},
		"labels forbidden to doctor":    {byLabel, forbidden, &status.Config{}, doctor.Warn, []string{"nodes is forbidden", "label"}},
		"labels forbidden to both":      {byLabel, forbidden, &status.Config{LabelsError: "403"}, doctor.Fail, []string{"403", "watch"}},
		"labels forbidden to the agent": {byLabel, labels(nil, nil), &status.Config{LabelsError: "403"}, doctor.Fail, []string{"403", "watch"}},
		"labels not used":               {"mig: {strategy: mixed}", forbidden, nil, doctor.Pass, nil},
		"conflicting sections":          {"nodes:\n- names: [node]\n  health: {xids: {ignore: [48]}}\n- names: [node]\n  health: {xids: {fatal: [48]}}\n", forbidden, nil, doctor.Fail, []string{"48"}},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{}
			if tc.file != "" {
				files["config.yaml"] = tc.file
			}
			f := examine(t, files, func(n *doctor.Node) {
				n.Labels = tc.labels
				if tc.agent != nil {
					if tc.agent.Path == "" {
						tc.agent.Path = n.ConfigFile
					}
					n.Address = agentWith(t, *tc.agent)
				}
			})["config"]
			if f.Verdict != tc.want {
				t.Errorf("%+v, want %s", f, tc.want)
			}
			for _, text := range tc.texts {
				if !strings.Contains(f.Message+" "+f.Remedy, text) {
					t.Errorf("%+v does not contain %q", f, text)
				}
			}
		})
	}
}

// NVIDIA's device plugin is reported only while it runs. A stale socket is ignored.
func TestNVIDIAPluginIsReported(t *testing.T) {
	for name, serving := range map[string]bool{"running": true, "ended": false} {
		var listener net.Listener
		found := examine(t, map[string]string{"kubelet/device-plugins/kubelet.sock": ""}, func(n *doctor.Node) {
			var err error
			if listener, err = net.Listen("unix", filepath.Join(n.KubeletDir, "device-plugins", "nvidia-gpu.sock")); err != nil {
				t.Fatal(err)
			}
			if !serving {
				listener.(*net.UnixListener).SetUnlinkOnClose(false)
				_ = listener.Close()
			}
		})
		_ = listener.Close()
		if reported := strings.Contains(found["kubelet"].Message, "nvidia-gpu.sock"); reported != serving {
			t.Errorf("%s: %+v", name, found["kubelet"])
		}
	}
}
