package main

import "testing"

// An index or UUID names one device. Devices that are not on the node have no index.
func TestNamed(t *testing.T) {
	devices := []cordonable{
		{uuid: "GPU-gone"},
		{index: "0", uuid: "GPU-0a"},
		{index: "0:1", uuid: "MIG-1b", parent: "GPU-0a"},
	}
	for name, want := range map[string]string{
		"": "", "0": "GPU-0a", "0:1": "MIG-1b", "1": "", "00": "", " 0": "", "GPU-gone": "GPU-gone", "gpu-0A": "GPU-0a",
		"MIG-1B": "MIG-1b", "gpu-FFFF": "GPU-ffff", "mig-FFFF": "MIG-ffff", "GPU-": "", "ffff": "", "GPU-a/b": "", "-": "",
	} {
		device, found := named(name, devices)
		if found != (want != "") || found && device.uuid != want {
			t.Errorf("%q is %+v (%t), want %q", name, device, found, want)
		}
	}
}
