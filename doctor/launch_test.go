package doctor

import (
	"strings"
	"syscall"
	"testing"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

func TestSight(t *testing.T) {
	both := map[string]string{cudaName: "", host.NVMLName: ""}
	for _, tc := range []struct {
		name string
		seen sight
		want map[string]string // by link: the verdict, and what is said or advised
	}{
		{"all is well",
			sight{contents: contents{Nodes: map[string]syscall.Errno{"/dev/nvidia0": 0}, Libraries: both, GPUs: []gpu.GPU{{UUID: "GPU-1"}}}},
			map[string]string{"its nodes": "pass all 1", "its libraries": "pass libcuda.so.1 and libnvidia-ml.so.1", "its GPU": "pass NVML lists GPU-1"}},
		{"the runtime does no CDI",
			sight{contents: contents{Nodes: map[string]syscall.Errno{"/dev/nvidiactl": syscall.ENOENT, "/dev/nvidia0": syscall.ENOENT},
				Libraries: map[string]string{cudaName: "libcuda.so.1: cannot open shared object file", host.NVMLName: "libnvidia-ml.so.1: cannot open shared object file"}}},
			map[string]string{"its nodes": "fail cannot open /dev/nvidia0, /dev/nvidiactl: no such file or directory the runtime",
				"its libraries": "fail libnvidia-ml.so.1: cannot open", "its GPU": "skip there is no NVML"}},
		{"devices are kept away",
			sight{contents: contents{Nodes: map[string]syscall.Errno{"/dev/nvidia0": syscall.EPERM}, Libraries: both, GPUs: []gpu.GPU{{UUID: "GPU-1"}}}},
			map[string]string{"its nodes": "fail cannot open /dev/nvidia0: operation not permitted something beside CDI", "its libraries": "pass", "its GPU": "pass"}},
		{"the driver was reloaded",
			sight{contents: contents{Nodes: map[string]syscall.Errno{"/dev/nvidia-uvm": syscall.ENXIO}, Libraries: both, NVMLError: "initialising NVML: unknown error"}},
			map[string]string{"its nodes": "fail cannot open /dev/nvidia-uvm: no such device or address no driver answers", "its libraries": "pass", "its GPU": "fail initialising NVML"}},
		{"no driver answers, on the node neither",
			sight{contents: contents{Nodes: map[string]syscall.Errno{"/dev/nvidia-uvm": syscall.ENXIO, "/dev/nvidiactl": syscall.ENXIO}, Libraries: both, GPUs: []gpu.GPU{{UUID: "GPU-1"}}},
				onNode: map[string]syscall.Errno{"/dev/nvidia-uvm": syscall.ENXIO, "/dev/nvidiactl": syscall.ENXIO}},
			map[string]string{"its nodes": "warn cannot open /dev/nvidia-uvm, /dev/nvidiactl: no such device or address; nor can the node itself", "its libraries": "pass", "its GPU": "pass"}},
		{"one answers on the node only",
			sight{contents: contents{Nodes: map[string]syscall.Errno{"/dev/nvidia-uvm": syscall.ENXIO, "/dev/nvidiactl": 0}, Libraries: both, GPUs: []gpu.GPU{{UUID: "GPU-1"}}},
				onNode: map[string]syscall.Errno{"/dev/nvidia-uvm": 0}},
			map[string]string{"its nodes": "fail cannot open /dev/nvidia-uvm: no such device or address", "its libraries": "pass", "its GPU": "pass"}},
		{"another GPU is there, too",
			sight{contents: contents{Libraries: both, GPUs: []gpu.GPU{{UUID: "GPU-1"}, {UUID: "GPU-2"}}}},
			map[string]string{"its nodes": "pass", "its libraries": "pass", "its GPU": `fail NVML lists ["GPU-1" "GPU-2"], not GPU-1 alone something beside CDI`}},
		{"graphics alone are given",
			sight{contents: contents{}},
			map[string]string{"its nodes": "pass", "its libraries": "skip", "its GPU": "skip"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := map[string]string{}
			for _, f := range tc.seen.findings("GPU-1") {
				got[f.Link] = strings.TrimSpace(string(f.Verdict) + " " + f.Says + " " + f.Fix)
			}
			for link, want := range tc.want {
				if !strings.HasPrefix(got[link], want) {
					t.Errorf("%s: %q, want %q", link, got[link], want)
				}
			}
		})
	}
}
