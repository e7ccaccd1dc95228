package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpucdi/gpucdi/gpu"
)

// readClique reads where the GPU is in a fabric of several nodes. It joins the
// fabric some time after the driver was loaded. Only a label tells it, so one
// that does not say is as good as outside.
func (s session) readClique(g *gpu.GPU, dev nvml.Device) {
	g.Clique = ""
	if !s.has("nvmlDeviceGetGpuFabricInfo") {
		return
	}
	info, ret := dev.GetGpuFabricInfo()
	if ret != nvml.SUCCESS || info.State != nvml.GPU_FABRIC_STATE_COMPLETED || nvml.Return(info.Status) != nvml.SUCCESS {
		return
	}
	if u := info.ClusterUuid; u != [16]uint8{} { // a single node's fabric has none
		g.Clique = fmt.Sprintf("%x-%x-%x-%x-%x.%d", u[:4], u[4:6], u[6:8], u[8:10], u[10:], info.CliqueId)
	}
}
