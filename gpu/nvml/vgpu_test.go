package nvml

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
)

// space is a configuration space with capabilities, which begin where they are
// put and lead on to the next one by themselves.
func space(first byte, capabilities map[byte]string) []byte {
	config := make([]byte, 4096)
	config[pciStatus], config[pciFirst] = pciHasList, first
	for at, capability := range capabilities {
		copy(config[at:], capability)
	}
	return config
}

const hostRecord = "460.16\x00\x00\x00\x00" + "r460_00\x00\x00\x00"

func TestVGPU(t *testing.T) {
	known := &gpu.VGPU{HostDriver: "460.16", HostBranch: "r460_00"}
	virtual := "\x09\x00\x1bVF\x00\x16" + hostRecord
	unlisted := space(0xd0, map[byte]string{0xd0: virtual})
	unlisted[pciStatus] = 0
	for name, tc := range map[string]struct {
		config []byte
		want   *gpu.VGPU
	}{
		"virtual":               {space(0xd0, map[byte]string{0xd0: virtual}), known},
		"behind others":         {space(0x60, map[byte]string{0x60: "\x01\x68", 0x68: "\x09\xd0\x05no", 0xd0: virtual}), known},
		"behind another record": {space(0xd0, map[byte]string{0xd0: "\x09\x00\x1eVF\x07\x03x\x00\x16" + hostRecord}), known},
		"another's":             {space(0xd0, map[byte]string{0xd0: "\x09\x00\x14\x01\x00"}), nil},
		"no list":               {unlisted, nil},
		"an empty list":         {space(0, nil), nil},
		"a circle":              {space(0x60, map[byte]string{0x60: "\x01\x68", 0x68: "\x01\x60"}), nil},
		"off the bus":           {bytes.Repeat([]byte{0xff}, 4096), nil},
		"too few rights":        {space(0xd0, map[byte]string{0xd0: virtual})[:64], nil},
		"no record":             {space(0xd0, map[byte]string{0xd0: "\x09\x00\x05VF"}), &gpu.VGPU{}},
		"a record of nothing":   {space(0xd0, map[byte]string{0xd0: "\x09\x00\x1bVF\x01\x00" + hostRecord}), &gpu.VGPU{}},
		"a record too long":     {space(0xd0, map[byte]string{0xd0: "\x09\x00\x1bVF\x00\xff" + hostRecord}), &gpu.VGPU{}},
		"a record too short":    {space(0xd0, map[byte]string{0xd0: "\x09\x00\x09VF\x00\x04ab"}), &gpu.VGPU{}},
		"the end of the space":  {space(0xfc, map[byte]string{0xfc: "\x09\x00\xff"}), nil},
	} {
		if got := vgpu(tc.config); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func FuzzVGPU(f *testing.F) {
	f.Add(space(0xd0, map[byte]string{0xd0: "\x09\x00\x1bVF\x00\x16" + hostRecord}))
	f.Fuzz(func(_ *testing.T, config []byte) { vgpu(config) })
}
