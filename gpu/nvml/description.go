package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
)

// brands are the names of the brands, as NVIDIA's tools write them.
var brands = map[nvml.BrandType]string{
	nvml.BRAND_QUADRO:              "Quadro",
	nvml.BRAND_TESLA:               "Tesla",
	nvml.BRAND_NVS:                 "NVS",
	nvml.BRAND_GRID:                "Grid",
	nvml.BRAND_GEFORCE:             "GeForce",
	nvml.BRAND_TITAN:               "Titan",
	nvml.BRAND_NVIDIA_VAPPS:        "NvidiaVApps",
	nvml.BRAND_NVIDIA_VPC:          "NvidiaVPC",
	nvml.BRAND_NVIDIA_VCS:          "NvidiaVCS",
	nvml.BRAND_NVIDIA_VWS:          "NvidiaVWS",
	nvml.BRAND_NVIDIA_CLOUD_GAMING: "NvidiaCloudGaming",
	nvml.BRAND_QUADRO_RTX:          "QuadroRTX",
	nvml.BRAND_NVIDIA_RTX:          "NvidiaRTX",
	nvml.BRAND_NVIDIA:              "Nvidia",
	nvml.BRAND_GEFORCE_RTX:         "GeForceRTX",
	nvml.BRAND_TITAN_RTX:           "TitanRTX",
}

var addressingModes = map[nvml.DeviceAddressingModeType]string{
	nvml.DEVICE_ADDRESSING_MODE_NONE: "None",
	nvml.DEVICE_ADDRESSING_MODE_HMM:  "HMM",
	nvml.DEVICE_ADDRESSING_MODE_ATS:  "ATS",
}

// readDescription reads the brand and the addressing mode. They are informational, so they stay empty on errors.
func (s session) readDescription(g *gpu.GPU, dev nvml.Device) {
	if brand, ret := dev.GetBrand(); ret == nvml.SUCCESS {
		g.Brand = brands[brand]
	}
	if !s.has("nvmlDeviceGetAddressingMode") {
		return
	}
	if mode, ret := dev.GetAddressingMode(); ret == nvml.SUCCESS {
		g.AddressingMode = addressingModes[nvml.DeviceAddressingModeType(mode.Value)]
	}
}
