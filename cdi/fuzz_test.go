package cdi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/internal/host"
)

func FuzzParseMajors(f *testing.F) {
	f.Add([]byte("Character devices:\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n"))
	f.Add([]byte("195\n nvidia 195\n-1 x\n99999999999999999999 y\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, major := range parseMajors(data) {
			if major <= 0 {
				t.Errorf("%q: invalid major %d", name, major)
			}
		}
	})
}

func FuzzParseCapabilities(f *testing.F) {
	f.Add([]byte("config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\n"))
	f.Add([]byte("gpu0/gi0/access -1\n 5\ngpu0/gi1/access\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for name, minor := range parseCapabilities(data) {
			if minor < 0 || minor > 1<<31-1 || strings.ContainsAny(name, " \n") {
				t.Errorf("%q: invalid minor %d", name, minor)
			}
		}
	})
}

func TestParseKernelVersion(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\nGCC version:  gcc version 12.2.0\n": "580.95.05",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs)\n":                                  "570.86.15",
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  390.157  Wed Oct 12\n":                                                       "390.157",
		"GCC version:  gcc version 12.2.0\n": "",
		"":                                   "",
	} {
		if got := parseKernelVersion(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func FuzzParseKernelVersion(f *testing.F) {
	f.Add("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\n")
	f.Add("NVRM version: . .1 1. 1..2 x.1")
	f.Fuzz(func(t *testing.T, text string) {
		version := parseKernelVersion(text)
		if version != "" && (!strings.Contains(text, version) || strings.Trim(version, ".0123456789") != "") {
			t.Errorf("%q: got version %q", text, version)
		}
	})
}

func FuzzDRMNode(f *testing.F) {
	f.Add("226:0\n")
	f.Add("226")
	f.Add("-1:-1")
	f.Add("99999999999999999999:1")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseDeviceNumbers("/dev/dri/card0", text)
		if err == nil && (n.Major <= 0 || n.Minor < 0) {
			t.Errorf("%q: %+v", text, n)
		}
	})
}

func FuzzForeignSpec(f *testing.F) {
	f.Add([]byte("cdiVersion: 0.5.0\nkind: gpucdi.dev/gpu\ndevices: [{name: GPU-a, containerEdits: {env: [A=b]}}]\n"))
	f.Add([]byte("{"))
	f.Add([]byte("kind: gpucdi.dev/gpu\ndevices: [null]\n"))
	spec := &specs.Spec{
		Version: "0.5.0", Kind: AgentKind,
		Devices: []specs.Device{{Name: "GPU-a", ContainerEdits: specs.ContainerEdits{Env: []string{"A=b"}}}},
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		foreign := filepath.Join(dir, "foreign.yaml")
		if err := os.WriteFile(foreign, data, 0o600); err != nil {
			t.Fatal(err)
		}
		file := AgentFile(dir, host.NewRoot(dir))
		// The agent's spec is written, and the foreign file stays unchanged.
		if _, err := file.Put(spec); err != nil && !strings.Contains(err.Error(), foreign) {
			t.Errorf("next to %q: %v", data, err)
		}
		if err := verifyFile(file.Path, host.NewRoot(dir)); err != nil {
			t.Errorf("next to %q: %v", data, err)
		}
		if got, err := os.ReadFile(foreign); err != nil || string(got) != string(data) {
			t.Errorf("foreign file changed to %q, %v", got, err)
		}
		_ = verifyFile(foreign, host.NewRoot(dir)) // must not panic
	})
}

func FuzzParseCSV(f *testing.F) {
	f.Add([]byte("# comment\ndev, /dev/nvmap\nlib, /usr/lib/libcuda.so.*\n"))
	f.Add([]byte("lib\nlib,\nlib, relative\ndir, /../x,y\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		listed, err := parseCSV(data)
		for _, l := range listed {
			if err == nil && (!strings.HasPrefix(l.path, "/") || strings.Contains(l.path, "/../")) {
				t.Errorf("%q: %+v", data, l)
			}
		}
	})
}
