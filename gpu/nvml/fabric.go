package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
)

// readClique reads the GPU's clique of a multi-node NVLink fabric. A GPU may join the fabric some time after the driver
// was loaded. The clique is used for a label only, so it stays empty on errors.
func (s session) readClique(g *gpu.GPU, dev nvml.Device) {
	g.Clique = ""
	if !s.has("nvmlDeviceGetGpuFabricInfo") {
		return
	}
	info, ret := dev.GetGpuFabricInfo()
	if ret != nvml.SUCCESS || info.State != nvml.GPU_FABRIC_STATE_COMPLETED || nvml.Return(info.Status) != nvml.SUCCESS {
		return
	}
	if u := info.ClusterUuid; u != [16]uint8{} { // zero in a single-node fabric
		g.Clique = fmt.Sprintf("%x-%x-%x-%x-%x.%d", u[:4], u[4:6], u[6:8], u[8:10], u[10:], info.CliqueId)
	}
}
