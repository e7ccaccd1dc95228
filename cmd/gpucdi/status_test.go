package main

import (
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gpucdi/gpucdi/doctor"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/status"
)

var someNode = status.Node{
	Name: "node", Version: "v1",
	Runtime: status.Runtime{Trouble: "CDI is off"},
	Kubelet: status.Kubelet{Resources: []status.Resource{{Name: "nvidia.com/gpu", Trouble: "waiting"}}},
	GPUs: []status.GPU{
		{GPU: gpu.GPU{UUID: "GPU-a", Index: 0, Product: "NVIDIA H100 80GB HBM3", MemoryBytes: 80 << 30}},
		{GPU: gpu.GPU{UUID: "GPU-b", Index: 11, NUMANode: gpu.NUMAUnknown}},
		{GPU: gpu.GPU{UUID: "GPU-c", Index: 12, Product: "NVIDIA A100", MemoryBytes: 40 << 30,
			MIGDevices: []gpu.MIGDevice{{UUID: "MIG-d", Profile: "1g.5gb", MemoryBytes: 5 << 30}}}},
	},
	Devices: []status.Device{
		{ID: "GPU-a", GPU: "GPU-a", Index: "0", Resource: "nvidia.com/gpu", HeldBy: []status.Holder{{Namespace: "default", Pod: "pod", Container: "main"}}},
		{ID: "GPU-b", GPU: "GPU-b", Index: "11", Resource: "nvidia.com/gpu", Fault: gpu.Fault{Code: "xid_79", Message: "XID 79: off the bus", Remedy: "reboot the node", Since: time.Now()}},
		{ID: "MIG-d", GPU: "GPU-c", Index: "12:0", Resource: "nvidia.com/mig-1g.5gb", Replicas: []string{"MIG-d::0", "MIG-d::1"},
			HeldBy: []status.Holder{{Namespace: "default", Pod: "a", Container: "b"}, {Namespace: "default", Pod: "c", Container: "d"}}},
		{ID: "MIG-e", GPU: "GPU-c", Index: "12:1", Resource: "nvidia.com/mig-1g.5gb", State: "draining", Since: time.Now(), Reason: "no longer offered", Awaits: "its pods to end"},
		{ID: "MIG-f", GPU: "GPU-c", Index: "12:2", Resource: "nvidia.com/mig-1g.5gb", State: "waiting", Since: time.Now(), Reason: "waits until no pod holds MIG-e"},
	},
	Unreadable: []gpu.Unreadable{{Index: 5, Fault: gpu.Fault{Code: gpu.FaultUnreadable, Message: "no answer"}}},
}

var escape = regexp.MustCompile("\x1b\\[[0-9]+m")

// Every column begins at the same place in every row, coloured or not.
func TestStatusTablesLineUp(t *testing.T) {
	for name, paint := range map[string]painter{"plain": plain, "coloured": coloured} {
		for _, wide := range []bool{false, true} {
			var out strings.Builder
			if err := writeStatusTables(&out, someNode, wide, paint); err != nil {
				t.Fatal(err)
			}
			text := escape.ReplaceAllString(out.String(), "")
			if (text != out.String()) != (name == "coloured") {
				t.Errorf("%s has escapes: %v", name, text != out.String())
			}
			_, table, _ := strings.Cut(text, "\n\nGPU ")
			rows := strings.Split("GPU "+table, "\n")
			for row, cells := range map[int][]string{
				1: {"NVIDIA H100", "80.0 GiB", "nvidia.com/gpu", "healthy", "default/pod/main"},
				2: {"-", "0.0 GiB", "nvidia.com/gpu", "unhealthy", "-"},
				3: {"NVIDIA A100 MIG 1g.5gb", "5.0 GiB", "nvidia.com/mig-1g.5gb ×2", "healthy", "default/a/b, default/c/d"},
				4: {"NVIDIA A100", "40.0 GiB", "nvidia.com/mig-1g.5gb", "draining", "-"},
				5: {"NVIDIA A100", "40.0 GiB", "nvidia.com/mig-1g.5gb", "waiting", "-"},
			} {
				for i, head := range []string{"PRODUCT", "MEMORY", "RESOURCE", "HEALTH", "POD"} {
					at := utf8.RuneCountInString(rows[0][:strings.Index(rows[0], head)])
					if cell := string([]rune(rows[row])[at:]); !strings.HasPrefix(cell, cells[i]) {
						t.Errorf("%s: %q is not below %s in\n%s", name, cells[i], head, text)
					}
				}
			}
			for _, says := range []string{"CDI is off", "nvidia.com/gpu: waiting", "XID 79: off the bus", "GPU 5", "no answer", "no longer offered; waits for its pods to end", "waits until no pod holds MIG-e"} {
				if !strings.Contains(text, says) {
					t.Errorf("%q is not in\n%s", says, text)
				}
			}
			if strings.Count(text, "reboot the node") != 1 || strings.Contains(text, "off the bus; reboot the node") == wide {
				t.Errorf("wide %v:\n%s", wide, text)
			}
		}
	}
}

// hostile is what a terminal may be sent by hardware, by a runtime or by whoever
// listens at the agent's address.
const hostile = "\x1b[2J\x1b]0;title\x07forged\n0  GPU-forged\t\u202ehealthy\u009b31m\xff"

// checkGraphic fails the test if text has anything but lines of graphic characters.
func checkGraphic(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if strings.ContainsFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return !unicode.IsGraphic(r) || r == unicode.ReplacementChar }) {
			t.Errorf("a control character is in %q", line)
		}
	}
}

// Whatever a status says, a table has a line for each link and device.
func TestStatusTablesOfAHostileAgent(t *testing.T) {
	since := time.Now()
	h := status.Node{
		Name: hostile, Version: hostile,
		Config:  status.Config{Path: hostile, Trouble: hostile},
		Driver:  status.Driver{Driver: gpu.Driver{Version: hostile}, Root: hostile},
		Spec:    status.Spec{Path: hostile},
		Runtime: status.Runtime{Name: hostile, Version: hostile, SpecDirs: []string{hostile}},
		Kubelet: status.Kubelet{Resources: []status.Resource{{Name: hostile, Trouble: hostile}}, PodsTrouble: hostile},
		GPUs:    []status.GPU{{GPU: gpu.GPU{UUID: "GPU-a", Product: hostile, PCIBusID: hostile}}},
		Devices: []status.Device{
			{ID: hostile, GPU: "GPU-a", Index: hostile, Resource: hostile, Fault: gpu.Fault{Code: hostile, Message: hostile, Remedy: hostile, Since: since}},
			{ID: hostile, GPU: "GPU-a", State: hostile, Reason: hostile, Awaits: hostile, Since: since},
			{ID: "GPU-b", HeldBy: []status.Holder{{Namespace: hostile, Pod: hostile, Container: hostile}}},
		},
		Unreadable: []gpu.Unreadable{{Index: 5, Fault: gpu.Fault{Code: hostile, Message: hostile, Remedy: hostile}}},
	}
	for _, wide := range []bool{false, true} {
		var out strings.Builder
		if err := writeStatusTables(&out, h, wide, plain); err != nil {
			t.Fatal(err)
		}
		checkGraphic(t, out.String())
		const lines = 1 + 1 + 6 + 1 + 4 + 2 // the node, the links, the devices, and what is unknown
		if got := strings.Count(out.String(), "\n"); got != lines {
			t.Errorf("there are %d lines, want %d:\n%s", got, lines, out.String())
		}
	}
}

// A finding takes one line and one for the fix; further lines of a text are indented,
// so that none of them looks like a finding.
func TestFindingsOfAHostileNode(t *testing.T) {
	var out strings.Builder
	report(&out, plain, doctor.Finding{Link: "runtime", Verdict: doctor.Fail, Says: hostile, Fix: hostile})
	checkGraphic(t, out.String())
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "fail  runtime        ") {
		t.Errorf("it is shown as\n%s", out.String())
	}
	for _, line := range lines[1:] {
		if !strings.HasPrefix(line, strings.Repeat(" ", 21)) {
			t.Errorf("%q looks like a finding", line)
		}
	}
}
