package doctor_test

import (
	"context"
	"encoding/json"
	"errors"
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

// examine inspects a node of these files; where one begins with an arrow it is
// a link. change may change what the doctor is told of the node; nil does not.
func examine(t *testing.T, files map[string]string, change func(*doctor.Node)) map[string]doctor.Finding {
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
	if change != nil {
		change(&node)
	}
	found := map[string]doctor.Finding{}
	doctor.Examine(t.Context(), node, func(f doctor.Finding) { found[f.Link] = f })
	return found
}

var every = []string{"CDI parts", "CDI spec", "GPUs", "NVML", "agent", "config", "container", "driver files", "hardware", "kernel module", "kubelet", "runtime"}

// Of a node that has nothing each link is told, and what to do about it.
func TestNothing(t *testing.T) {
	found := examine(t, map[string]string{"config.yaml": "misspelled: 1"}, nil)
	if links := slices.Sorted(maps.Keys(found)); !slices.Equal(links, every) {
		t.Errorf("it tells of %q, want %q", links, every)
	}
	for link, f := range found {
		want := doctor.Fail
		switch link {
		case "hardware":
			want = doctor.Warn
		case "NVML", "GPUs", "CDI parts", "container":
			want = doctor.Skip
		}
		if f.Verdict != want || f.Says == "" {
			t.Errorf("%+v, want %s", f, want)
		}
		if advice := f.Says + f.Fix; f.Verdict == doctor.Fail && !strings.Contains(advice, "install") &&
			!strings.Contains(advice, "run ") && !strings.Contains(advice, "start ") && !strings.Contains(advice, "serve") && !strings.Contains(advice, "fix") {
			t.Errorf("%s does not say what to do: %s %s", link, f.Says, f.Fix)
		}
	}
}

func TestLinks(t *testing.T) {
	for _, tc := range []struct {
		name  string
		files map[string]string
		link  string
		want  doctor.Verdict
		says  string
	}{
		{"a GPU in its slot", map[string]string{"sys/bus/pci/devices/0000:18:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:18:00.0/class": "0x030200\n"},
			"hardware", doctor.Pass, "1 NVIDIA GPUs"},
		{"another card in its slot", map[string]string{"sys/bus/pci/devices/0000:18:00.0/vendor": "0x8086\n", "sys/bus/pci/devices/0000:18:00.0/class": "0x030000\n"},
			"hardware", doctor.Warn, "no NVIDIA GPU"},
		{"NVIDIA's sound", map[string]string{"sys/bus/pci/devices/0000:18:00.1/vendor": "0x10de\n", "sys/bus/pci/devices/0000:18:00.1/class": "0x040300\n"},
			"hardware", doctor.Warn, "no NVIDIA GPU"},
		{"the module", map[string]string{moduleFile: module}, "kernel module", doctor.Pass, "580.95.05"},
		{"the open module", map[string]string{moduleFile: openModule}, "kernel module", doctor.Pass, "580.95.05"},
		{"something else for a module", map[string]string{moduleFile: "?"}, "kernel module", doctor.Fail, "no version found"},
		{"files of the module's version", map[string]string{moduleFile: module, library: "→libnvidia-ml.so.580.95.05", "usr/lib64/libnvidia-ml.so.580.95.05": ""},
			"driver files", doctor.Pass, "libnvidia-ml.so.580.95.05"},
		{"files of another version", map[string]string{moduleFile: module, library: "→libnvidia-ml.so.590.12.34", "usr/lib64/libnvidia-ml.so.590.12.34": ""},
			"driver files", doctor.Fail, "580.95.05"},
		{"a library without a version", map[string]string{moduleFile: module, library: ""}, "driver files", doctor.Pass, library},
		{"a library that cannot be asked", map[string]string{moduleFile: module, library: ""}, "NVML", doctor.Fail, "ended"},
		{"a spec that is none", map[string]string{"cdi/gpucdi.dev-gpu.json": "{"}, "CDI spec", doctor.Fail, "reading the CDI spec"},
		{"a kubelet without pods", map[string]string{"kubelet/device-plugins/kubelet.sock": ""}, "kubelet", doctor.Warn, "pod-resources"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := examine(t, tc.files, nil)[tc.link]
			if f.Verdict != tc.want || !strings.Contains(f.Says, tc.says) {
				t.Errorf("%+v, want %s and %q", f, tc.want, tc.says)
			}
		})
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

// The config passes only when the agent has applied what the file says for this node.
func TestConfig(t *testing.T) {
	const byLabel = "nodes:\n- section: large\n  mig: {strategy: mixed}\n"
	labels := func(labels map[string]string, err error) func(context.Context) (map[string]string, error) {
		return func(context.Context) (map[string]string, error) { return labels, err }
	}
	forbidden := labels(nil, errors.New("nodes is forbidden"))
	for name, tc := range map[string]struct {
		file   string // empty: none
		labels func(context.Context) (map[string]string, error)
		agent  *status.Config // nil: none answers; its path is that of the file unless it has one
		want   doctor.Verdict
		says   []string
	}{
		"no file":                {"", forbidden, nil, doctor.Pass, []string{"default"}},
		"a valid file":           {"mig: {strategy: mixed}", forbidden, &status.Config{}, doctor.Pass, []string{"config.yaml"}},
		"an invalid file":        {"mig: {strategy: both}", forbidden, &status.Config{}, doctor.Fail, []string{`"both"`, "config check"}},
		"the agent refused it":   {"mig: {strategy: mixed}", forbidden, &status.Config{Trouble: "keeping last known good: no such strategy"}, doctor.Fail, []string{"no such strategy"}},
		"the agent has another":  {"mig: {strategy: mixed}", forbidden, &status.Config{Path: "/other.yaml"}, doctor.Warn, []string{"/other.yaml", "--config"}},
		"only the agent has one": {"", forbidden, &status.Config{Path: "/other.yaml"}, doctor.Warn, []string{"/other.yaml", "--config"}},

		"a section by label":             {byLabel, labels(map[string]string{"nvidia.com/device-plugin.config": "large"}, nil), &status.Config{}, doctor.Pass, nil},
		"a section that is missing":      {byLabel, labels(map[string]string{"nvidia.com/device-plugin.config": "small"}, nil), &status.Config{}, doctor.Warn, []string{"small"}},
		"the doctor may not read labels": {byLabel, forbidden, &status.Config{}, doctor.Warn, []string{"nodes is forbidden", "label"}},
		"the agent may not read labels":  {byLabel, forbidden, &status.Config{LabelsTrouble: "403"}, doctor.Fail, []string{"403", "watch"}},
		"only the agent may not":         {byLabel, labels(nil, nil), &status.Config{LabelsTrouble: "403"}, doctor.Fail, []string{"403", "watch"}},
		"labels that nothing selects by": {"mig: {strategy: mixed}", forbidden, nil, doctor.Pass, nil},
		"sections that cannot be joined": {"nodes:\n- names: [node]\n  health: {xids: {ignore: [48]}}\n- names: [node]\n  health: {xids: {fatal: [48]}}\n", forbidden, nil, doctor.Fail, []string{"48"}},
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
			for _, says := range tc.says {
				if !strings.Contains(f.Says+" "+f.Fix, says) {
					t.Errorf("%+v does not say %q", f, says)
				}
			}
		})
	}
}

// NVIDIA's device plugin beside the agent takes its resources, so the doctor reports it, but not
// a socket that a plugin has left behind.
func TestNVIDIAsPluginIsReported(t *testing.T) {
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
		if reported := strings.Contains(found["kubelet"].Says, "nvidia-gpu.sock"); reported != serving {
			t.Errorf("%s: the finding is %+v", name, found["kubelet"])
		}
	}
}
