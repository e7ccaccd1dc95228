package main

import (
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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
		{ID: "GPU-b", GPU: "GPU-b", Index: "11", Resource: "nvidia.com/gpu", Fault: &status.Fault{Reason: "XID 79: off the bus", Heals: "a reboot", Since: time.Now()}},
		{ID: "MIG-d", GPU: "GPU-c", Index: "12:0", Resource: "nvidia.com/mig-1g.5gb", Replicas: []string{"MIG-d::0", "MIG-d::1"},
			HeldBy: []status.Holder{{Namespace: "default", Pod: "a", Container: "b"}, {Namespace: "default", Pod: "c", Container: "d"}}},
	},
	Unreadable: []gpu.Unreadable{{Index: 5, Fault: "no answer"}},
}

var escape = regexp.MustCompile("\x1b\\[[0-9]+m")

// Every column begins at the same place in every row, coloured or not.
func TestStatusTablesLineUp(t *testing.T) {
	for name, paint := range map[string]func(string, colour) string{"plain": plain, "coloured": coloured} {
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
			} {
				for i, head := range []string{"PRODUCT", "MEMORY", "RESOURCE", "HEALTH", "POD"} {
					at := utf8.RuneCountInString(rows[0][:strings.Index(rows[0], head)])
					if cell := string([]rune(rows[row])[at:]); !strings.HasPrefix(cell, cells[i]) {
						t.Errorf("%s: %q is not below %s in\n%s", name, cells[i], head, text)
					}
				}
			}
			for _, says := range []string{"CDI is off", "nvidia.com/gpu: waiting", "XID 79: off the bus", "GPU 5", "no answer"} {
				if !strings.Contains(text, says) {
					t.Errorf("%q is not in\n%s", says, text)
				}
			}
			if strings.Contains(text, "a reboot") != wide {
				t.Errorf("wide %v:\n%s", wide, text)
			}
		}
	}
}
