package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

// For any text that the driver reports, the tables have one line for each GPU and no control characters.
func TestInventoryOfHostileDriver(t *testing.T) {
	inv := &gpu.Inventory{
		Driver: gpu.Driver{Version: hostile},
		GPUs: []gpu.GPU{
			{UUID: "GPU-a" + hostile, Product: hostile, PCIBusID: hostile, Fault: fault(hostile),
				MIGDevices: []gpu.MIGDevice{{UUID: hostile, Profile: hostile, Fault: fault(hostile)}}},
			{UUID: "GPU-b", Product: "NVIDIA × 2 °C"},
		},
		Unreadable: []gpu.Unreadable{{Index: 7, Fault: fault(hostile)}},
	}
	for _, wide := range []bool{false, true} {
		var out strings.Builder
		if err := writeInventory(&out, inv, wide); err != nil {
			t.Fatal(err)
		}
		checkGraphic(t, out.String())
		const lines = 1 + 1 + 4 + 1 + 2 + 1 + 3 // driver; then GPUs, MIG devices and links, each after an empty line
		if got := strings.Count(out.String(), "\n"); got != lines {
			t.Errorf("%d lines, want %d:\n%s", got, lines, out.String())
		}
		if !strings.Contains(out.String(), "NVIDIA × 2 °C") {
			t.Errorf("graphic characters are escaped:\n%s", out.String())
		}
	}
}

func TestInventoryWidth(t *testing.T) {
	inv := &gpu.Inventory{Driver: gpu.Driver{Version: "580.95.05"}}
	for i := range 16 {
		g := gpu.GPU{UUID: uuid("GPU", i), Index: i, Product: "NVIDIA RTX 6000 Ada Generation", MIG: gpu.MIGUnsupported}
		g.MIGDevices = []gpu.MIGDevice{{UUID: uuid("MIG", i), Profile: "1c.3g.20gb+me", MemoryBytes: 141 << 30}}
		inv.GPUs = append(inv.GPUs, g)
	}
	var table, wide strings.Builder
	if err := errors.Join(writeInventory(&table, inv, false), writeInventory(&wide, inv, true)); err != nil {
		t.Fatal(err)
	}
	checkWidth(t, table.String())
	for _, head := range []string{"DEVICE NODE", "PCI", "NUMA", "ARCHITECTURE"} {
		if strings.Contains(table.String(), head) || !strings.Contains(wide.String(), head) {
			t.Errorf("column %s is not only in the wide table:\n%s\n%s", head, table.String(), wide.String())
		}
	}
}

func TestDeviceNode(t *testing.T) {
	for minor, want := range map[int]string{7: "/dev/nvidia7", gpu.MinorUnknown: "-"} {
		if got := deviceNode(gpu.GPU{Minor: minor}); got != want {
			t.Errorf("minor %d: %q, want %q", minor, got, want)
		}
	}
}

func fault(message string) gpu.Fault { return gpu.Fault{Code: gpu.FaultUnreadable, Message: message} }
