package nvml

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

// configSpace returns a PCI configuration space with capabilities, by offset. Each contains the pointer to the next.
func configSpace(first byte, capabilities map[byte]string) []byte {
	config := make([]byte, 4096)
	config[pciStatus], config[pciCapabilityList] = pciStatusCapList, first
	for at, capability := range capabilities {
		copy(config[at:], capability)
	}
	return config
}

const hostRecord = "460.16\x00\x00\x00\x00" + "r460_00\x00\x00\x00"

func TestVGPU(t *testing.T) {
	known := &gpu.VGPU{HostDriver: "460.16", HostBranch: "r460_00"}
	virtual := "\x09\x00\x1bVF\x00\x16" + hostRecord
	unlisted := configSpace(0xd0, map[byte]string{0xd0: virtual})
	unlisted[pciStatus] = 0
	for name, tc := range map[string]struct {
		config []byte
		want   *gpu.VGPU
	}{
		"vGPU":                     {configSpace(0xd0, map[byte]string{0xd0: virtual}), known},
		"after other capabilities": {configSpace(0x60, map[byte]string{0x60: "\x01\x68", 0x68: "\x09\xd0\x05no", 0xd0: virtual}), known},
		"after another record":     {configSpace(0xd0, map[byte]string{0xd0: "\x09\x00\x1eVF\x07\x03x\x00\x16" + hostRecord}), known},
		"other vendor-specific":    {configSpace(0xd0, map[byte]string{0xd0: "\x09\x00\x14\x01\x00"}), nil},
		"no capability list":       {unlisted, nil},
		"empty capability list":    {configSpace(0, nil), nil},
		"loop":                     {configSpace(0x60, map[byte]string{0x60: "\x01\x68", 0x68: "\x01\x60"}), nil},
		"off the bus":              {bytes.Repeat([]byte{0xff}, 4096), nil},
		"unprivileged":             {configSpace(0xd0, map[byte]string{0xd0: virtual})[:64], nil},
		"no record":                {configSpace(0xd0, map[byte]string{0xd0: "\x09\x00\x05VF"}), &gpu.VGPU{}},
		"record of length 0":       {configSpace(0xd0, map[byte]string{0xd0: "\x09\x00\x1bVF\x01\x00" + hostRecord}), &gpu.VGPU{}},
		"record too long":          {configSpace(0xd0, map[byte]string{0xd0: "\x09\x00\x1bVF\x00\xff" + hostRecord}), &gpu.VGPU{}},
		"record too short":         {configSpace(0xd0, map[byte]string{0xd0: "\x09\x00\x09VF\x00\x04ab"}), &gpu.VGPU{}},
		"end of the space":         {configSpace(0xfc, map[byte]string{0xfc: "\x09\x00\xff"}), nil},
	} {
		if got := parseVGPU(tc.config); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func FuzzVGPU(f *testing.F) {
	f.Add(configSpace(0xd0, map[byte]string{0xd0: "\x09\x00\x1bVF\x00\x16" + hostRecord}))
	f.Fuzz(func(_ *testing.T, config []byte) { parseVGPU(config) })
}
