package doctor_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/gpucdi/gpucdi/doctor"
	"github.com/gpucdi/gpucdi/internal/config"
	"github.com/gpucdi/gpucdi/internal/host"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	moduleFile = "proc/driver/nvidia/version"
	library    = "usr/lib64/libnvidia-ml.so.1"
	module     = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\n"
	openModule = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
)

// examine looks at a node of these files; where one begins with an arrow it is
// a link.
func examine(t *testing.T, files map[string]string, load error) map[string]doctor.Finding {
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
	found := map[string]doctor.Finding{}
	doctor.Examine(t.Context(), doctor.Node{
		Root:       host.NewRoot(root),
		KubeletDir: filepath.Join(root, "kubelet"),
		CDIDir:     filepath.Join(root, "cdi"),
		Address:    "127.0.0.1:1",
		Worker:     "false",
		Load:       func() (config.Config, error) { return config.Default(), load },
		Launch:     &doctor.Launch{},
	}, func(f doctor.Finding) { found[f.Link] = f })
	return found
}

var every = []string{"CDI parts", "CDI spec", "GPUs", "NVML", "agent", "config", "container", "driver files", "hardware", "kernel module", "kubelet", "runtime"}

// Of a node that has nothing each link is told, and what to do about it.
func TestNothing(t *testing.T) {
	found := examine(t, nil, errors.New("misspelled"))
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
			!strings.Contains(advice, "run ") && !strings.Contains(advice, "start ") && !strings.Contains(advice, "serve") && !strings.Contains(advice, "mend") {
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
		{"something else for a module", map[string]string{moduleFile: "?"}, "kernel module", doctor.Fail, "no version"},
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
