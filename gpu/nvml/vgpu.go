package nvml

import (
	"bytes"
	"io"
	"path"

	"github.com/gpucdi/gpucdi/gpu"
)

// The PCI configuration space of a conventional device.
const (
	pciConfigSize     = 256
	pciStatus         = 0x06
	pciHasList        = 0x10 // bit of the status: there are capabilities
	pciFirst          = 0x34 // where the first capability is
	pciVendorSpecific = 0x09
)

// The vendor-specific capability of a virtual GPU holds, after the three bytes
// that all have, "VF" and then records: type, length of the whole record, data.
const (
	vgpuHostDriver = 0 // type: version and branch of the host's driver
	vgpuTextSize   = 10
)

// readVGPU finds out whether the GPU is a virtual one. Who has too few rights is
// shown only the beginning of the configuration space, and finds none. What comes after
// it in the file is left alone: the kernel asks the device for each four bytes.
func (s session) readVGPU(g *gpu.GPU) {
	file, err := s.node.Open(path.Join("/sys/bus/pci/devices", g.PCIBusID, "config"))
	if err != nil {
		return
	}
	defer file.Close()
	config, err := io.ReadAll(io.LimitReader(file, pciConfigSize))
	if err == nil {
		g.VGPU = vgpu(config)
	}
}

// vgpu is what a configuration space tells; nil: the GPU is not virtual.
func vgpu(config []byte) *gpu.VGPU {
	if len(config) < pciConfigSize || config[pciStatus]&pciHasList == 0 {
		return nil
	}
	config = config[:pciConfigSize]
	const low = 3 // bits of a pointer that are reserved: capabilities begin at multiples of 4
	at := config[pciFirst] &^ low
	for range pciConfigSize / (low + 1) { // more would go round in circles
		if at == 0 {
			break
		}
		size := max(int(config[at+2]), 3)
		body := config[at+3 : min(int(at)+size, pciConfigSize)]
		records, virtual := bytes.CutPrefix(body, []byte("VF"))
		if config[at] == pciVendorSpecific && virtual {
			return hostOf(records)
		}
		at = config[at+1] &^ low
	}
	return nil
}

// hostOf reads the records of a virtual GPU, as far as they make sense.
func hostOf(records []byte) *gpu.VGPU {
	for len(records) >= 2 {
		kind, size := records[0], int(records[1])
		if size < 2 || size > len(records) {
			break
		}
		if data := records[2:size]; kind == vgpuHostDriver && len(data) >= 2*vgpuTextSize {
			return &gpu.VGPU{HostDriver: padded(data[:vgpuTextSize]), HostBranch: padded(data[vgpuTextSize : 2*vgpuTextSize])}
		}
		records = records[size:]
	}
	return &gpu.VGPU{}
}

// padded is a text that is filled up with zeros.
func padded(text []byte) string { return string(bytes.Trim(text, "\x00")) }
