package main

import (
	"strings"
	"testing"
	"unicode"

	"github.com/gpucdi/gpucdi/gpu"
)

// Whatever the hardware reports, a table has a line for each GPU and no control
// characters.
func TestTablesOfAHostileDriver(t *testing.T) {
	const hostile = "\x1b[2J\x1b]0;title\x07forged\n0  GPU-forged\t\u202eproduct\u009b31m\xff"
	inv := &gpu.Inventory{
		Driver: gpu.Driver{Version: hostile},
		GPUs: []gpu.GPU{
			{UUID: "GPU-a" + hostile, Product: hostile, PCIBusID: hostile, Fault: fault(hostile),
				MIGDevices: []gpu.MIGDevice{{UUID: hostile, Profile: hostile, Fault: fault(hostile)}}},
			{UUID: "GPU-b", Product: "NVIDIA × 2 °C"},
		},
		Unreadable: []gpu.Unreadable{{Index: 7, Fault: fault(hostile)}},
	}
	var out strings.Builder
	if err := writeTables(&out, inv); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if at := strings.IndexFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return !unicode.IsGraphic(r) || r == unicode.ReplacementChar }); at >= 0 {
			t.Errorf("a control character is in %q", line)
		}
	}
	const lines = 1 + 1 + 4 + 1 + 2 + 1 + 3 // the driver, the GPUs, the MIG devices and the links
	if got := strings.Count(out.String(), "\n"); got != lines {
		t.Errorf("there are %d lines, want %d:\n%s", got, lines, out.String())
	}
	if !strings.Contains(out.String(), "NVIDIA × 2 °C") {
		t.Errorf("characters that can be shown are not:\n%s", out.String())
	}
}

// The device node of a GPU is shown if the driver reports which one it is.
func TestDeviceNodeOfAGPU(t *testing.T) {
	for minor, want := range map[int]string{7: "/dev/nvidia7", gpu.MinorUnknown: "-"} {
		if got := nodeOf(gpu.GPU{Minor: minor}); got != want {
			t.Errorf("for minor %d it is %q, want %q", minor, got, want)
		}
	}
}

func fault(message string) gpu.Fault { return gpu.Fault{Code: gpu.FaultUnreadable, Message: message} }
