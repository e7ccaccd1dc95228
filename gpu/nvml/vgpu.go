package nvml

import (
	"bytes"
	"io"
	"path"

	"github.com/gpucdi/gpucdi/gpu"
)

// Offsets and values of the conventional PCI configuration space.
const (
	pciConfigSize     = 256
	pciStatus         = 0x06
	pciStatusCapList  = 0x10 // bit of the status register: capability list present
	pciCapabilityList = 0x34 // pointer to the first capability
	pciVendorSpecific = 0x09 // capability ID
)

// The vendor-specific capability of a vGPU has, after the common header of three bytes, the signature "VF", followed by
// records: type, length of the whole record, data.
const (
	vgpuHostDriver = 0  // record type: version and branch of the host's driver
	vgpuTextSize   = 10 // bytes of the version, and of the branch
)

// readVGPU sets VGPU if the GPU is a vGPU. Unprivileged processes can only read the beginning of the configuration
// space, which contains no capabilities. The extended space is not read, because each access goes to the device.
func (s session) readVGPU(g *gpu.GPU) {
	file, err := s.node.Open(path.Join("/sys/bus/pci/devices", g.PCIBusID, "config"))
	if err != nil {
		return
	}
	defer file.Close()
	config, err := io.ReadAll(io.LimitReader(file, pciConfigSize))
	if err == nil {
		g.VGPU = parseVGPU(config)
	}
}

// parseVGPU parses a PCI configuration space. It returns nil if the device is not a vGPU.
func parseVGPU(config []byte) *gpu.VGPU {
	if len(config) < pciConfigSize || config[pciStatus]&pciStatusCapList == 0 {
		return nil
	}
	config = config[:pciConfigSize]
	const low = 3 // reserved bits of a pointer
	at := config[pciCapabilityList] &^ low
	for range pciConfigSize / (low + 1) { // more capabilities would be a loop
		if at == 0 {
			break
		}
		size := max(int(config[at+2]), 3)
		body := config[at+3 : min(int(at)+size, pciConfigSize)]
		records, virtual := bytes.CutPrefix(body, []byte("VF"))
		if config[at] == pciVendorSpecific && virtual {
			return parseVGPURecords(records)
		}
		at = config[at+1] &^ low
	}
	return nil
}

// parseVGPURecords parses the records of a vGPU up to the first malformed one.
func parseVGPURecords(records []byte) *gpu.VGPU {
	for len(records) >= 2 {
		kind, size := records[0], int(records[1])
		if size < 2 || size > len(records) {
			break
		}
		if data := records[2:size]; kind == vgpuHostDriver && len(data) >= 2*vgpuTextSize {
			return &gpu.VGPU{HostDriver: trimNULs(data[:vgpuTextSize]), HostBranch: trimNULs(data[vgpuTextSize : 2*vgpuTextSize])}
		}
		records = records[size:]
	}
	return &gpu.VGPU{}
}

func trimNULs(text []byte) string { return string(bytes.Trim(text, "\x00")) }
