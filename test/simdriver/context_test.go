package simdriver_test

import (
	"os/exec"
	"testing"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// The results of CUDA calls.
const (
	cudaDeviceUnavailable = "46"
)

// The compute modes of NVML.
const (
	modeDefault    = "0"
	modeProhibited = "2"
	modeExclusive  = "3"
)

func TestMultiprocessors(t *testing.T) {
	for _, tc := range []struct {
		profile simdriver.Profile
		device  string
		want    string
	}{
		{simdriver.H100x8(), "7", "132"},
		{simdriver.PCIe4(), "0", "142"},
		{simdriver.GTX1060x2(), "1", "10"},
		{simdriver.A100MIG(), "6", "108"},
		{simdriver.A100MIG(), "0", "14"}, // 1g.5gb
	} {
		t.Run(tc.profile.Name+" "+tc.device, func(t *testing.T) {
			startProbe(t, install(t, tc.profile)).want("context "+tc.device, "0 "+tc.want)
		})
	}
}

// The compute mode limits the processes with a context on a GPU, also in other PID namespaces.
func TestComputeModes(t *testing.T) {
	d := install(t, simdriver.PCIe4())
	admin, first, second := startProbe(t, d), startProbe(t, d), startProbe(t, d)
	admin.open(4)
	isolated := startProbeCommand(t, d, exec.Command("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", buildProbe(t)))

	first.want("context 0", "0 142")
	second.want("context 0", "0 142")
	admin.want("mode 0 "+modeExclusive, "0")
	isolated.want("context 0", cudaDeviceUnavailable)
	isolated.want("context 1", "0 142")
	first.kill()
	isolated.want("context 0", cudaDeviceUnavailable)
	second.kill()
	isolated.want("context 0", "0 142")
	isolated.want("context 0", "0 142") // a second context of the process
	startProbe(t, d).want("alloc 1", cudaDeviceUnavailable)

	admin.want("mode 1 "+modeProhibited, "0")
	isolated.want("context 1", cudaDeviceUnavailable)
	must(t, d.Unload())
	must(t, d.Load())
	other := startProbe(t, d)
	other.want("context 1", "0 142")
	other.want("context 0", "0 142")
	admin.want("mode 0 "+modeDefault, "0")
}
