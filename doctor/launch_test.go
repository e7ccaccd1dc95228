package doctor

import (
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/runtime"
)

func TestProbedFindings(t *testing.T) {
	both := map[string]string{cudaName: "", host.NVMLName: ""}
	for _, tc := range []struct {
		name string
		got  probed
		want map[string]string // by check: verdict, message and remedy
	}{
		{"everything works",
			probed{contents: contents{Nodes: map[string]syscall.Errno{"/dev/nvidia0": 0}, Libraries: both, GPUs: []gpu.GPU{{UUID: "GPU-1"}}}},
			map[string]string{"device nodes": "pass all 1 device nodes", "libraries": "pass libcuda.so.1 and libnvidia-ml.so.1", "visible GPUs": "pass NVML lists GPU-1"}},
		{"CDI is disabled",
			probed{contents: contents{Nodes: map[string]syscall.Errno{"/dev/nvidiactl": syscall.ENOENT, "/dev/nvidia0": syscall.ENOENT},
				Libraries: map[string]string{cudaName: "libcuda.so.1: cannot open shared object file", host.NVMLName: "libnvidia-ml.so.1: cannot open shared object file"}}},
			map[string]string{"device nodes": "fail cannot open /dev/nvidia0, /dev/nvidiactl: no such file or directory enable CDI",
				"libraries": "fail libnvidia-ml.so.1: cannot open", "visible GPUs": "skip requires NVML"}},
		{"devices are restricted",
			probed{contents: contents{Nodes: map[string]syscall.Errno{"/dev/nvidia0": syscall.EPERM}, Libraries: both, GPUs: []gpu.GPU{{UUID: "GPU-1"}}}},
			map[string]string{"device nodes": "fail cannot open /dev/nvidia0: operation not permitted find another restriction", "libraries": "pass", "visible GPUs": "pass"}},
		{"the driver was reloaded",
			probed{contents: contents{Nodes: map[string]syscall.Errno{"/dev/nvidia-uvm": syscall.ENXIO}, Libraries: both, NVMLError: "initializing NVML: unknown error"}},
			map[string]string{"device nodes": "fail cannot open /dev/nvidia-uvm: no such device or address reload the kernel module", "libraries": "pass", "visible GPUs": "fail initializing NVML"}},
		{"no driver serves the device nodes, in the container and on the node",
			probed{contents: contents{Nodes: map[string]syscall.Errno{"/dev/nvidia-uvm": syscall.ENXIO, "/dev/nvidiactl": syscall.ENXIO}, Libraries: both, GPUs: []gpu.GPU{{UUID: "GPU-1"}}},
				onNode: map[string]syscall.Errno{"/dev/nvidia-uvm": syscall.ENXIO, "/dev/nvidiactl": syscall.ENXIO}},
			map[string]string{"device nodes": "warn cannot open /dev/nvidia-uvm, /dev/nvidiactl: no such device or address; the same on the node", "libraries": "pass", "visible GPUs": "pass"}},
		{"no driver serves a device node, in the container only",
			probed{contents: contents{Nodes: map[string]syscall.Errno{"/dev/nvidia-uvm": syscall.ENXIO, "/dev/nvidiactl": 0}, Libraries: both, GPUs: []gpu.GPU{{UUID: "GPU-1"}}},
				onNode: map[string]syscall.Errno{"/dev/nvidia-uvm": 0}},
			map[string]string{"device nodes": "fail cannot open /dev/nvidia-uvm: no such device or address", "libraries": "pass", "visible GPUs": "pass"}},
		{"another GPU is visible",
			probed{contents: contents{Libraries: both, GPUs: []gpu.GPU{{UUID: "GPU-1"}, {UUID: "GPU-2"}}}},
			map[string]string{"device nodes": "pass", "libraries": "pass", "visible GPUs": `fail NVML lists ["GPU-1" "GPU-2"], not only GPU-1 disable other GPU injection`}},
		{"graphics only",
			probed{contents: contents{}},
			map[string]string{"device nodes": "pass", "libraries": "skip the CDI spec has neither libcuda.so.1 nor libnvidia-ml.so.1", "visible GPUs": "skip the CDI spec has no libnvidia-ml.so.1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := map[string]string{}
			for _, f := range tc.got.findings("GPU-1") {
				got[f.Check] = strings.TrimSpace(string(f.Verdict) + " " + f.Message + " " + f.Remedy)
			}
			for check, want := range tc.want {
				if !strings.HasPrefix(got[check], want) {
					t.Errorf("%s: %q, want %q", check, got[check], want)
				}
			}
		})
	}
}

// The image can print anything, so the doctor keeps only printed paths that are in the CDI spec.
func TestDecode(t *testing.T) {
	wanted := cdi.Edits{Nodes: []string{"/dev/nvidia0", "/dev/nvidiactl"}, Files: []string{cudaName}}
	long := strings.Repeat("x", 1<<20)
	printed := `{"nodes": {"/dev/nvidia0": 6, "/dev/sda": 6}, "libraries": {"libcuda.so.1": "` + long + `", "other.so": "not found"}, "nvmlError": "` + long + `"}`
	got, err := decode([]byte(printed), wanted)
	if err != nil || !reflect.DeepEqual(got.Nodes, map[string]syscall.Errno{"/dev/nvidia0": syscall.ENXIO}) || len(got.Libraries) != 1 {
		t.Errorf("nodes %v, %d libraries, %v", got.Nodes, len(got.Libraries), err)
	}
	if len(got.Libraries[cudaName]) > textLimit || len(got.NVMLError) > textLimit {
		t.Errorf("texts of %d and %d bytes", len(got.Libraries[cudaName]), len(got.NVMLError))
	}
	_, err = decode([]byte("not JSON\x1b[2J"+long), wanted)
	if err == nil || !strings.Contains(err.Error(), "not JSON\ufffd[2J") || len(err.Error()) > 2*textLimit {
		t.Errorf("error %.200q", err)
	}
}

// Privileged containers are not compared with their allocations. If device nodes do not identify GPUs, no container is.
func TestContainers(t *testing.T) {
	e := examination{snapshot: &driver.Snapshot{Inventory: &gpu.Inventory{}}}
	got := e.compare([]runtime.Container{{Name: "main"}, {Name: "agent", Privileged: true}}, func(_, _, _, _ string) (_, _ []string) { return nil, nil })
	if len(got) != 1 || got[0].Verdict != Pass || !strings.HasPrefix(got[0].Message, "1 unprivileged") {
		t.Errorf("with a privileged container: %+v", got)
	}
	e.Root, e.containerRuntime.Name = host.NewRoot(t.TempDir()), "containerd"
	e.snapshot.Inventory.Platform, e.inspected = gpu.WSL2, cdi.Parts{GPUs: map[string][]cdi.DeviceNode{}, Shared: true}
	if got := e.containers(t.Context()); got[0].Verdict != Skip || !strings.Contains(got[0].Message, "wsl2") {
		t.Errorf("on WSL2: %+v", got)
	}
}

// In a pod, the doctor cannot mount its programs in the container, so the image must contain them.
func TestRemedyOfImage(t *testing.T) {
	for _, tc := range []struct{ root, image, remedy string }{
		{"/", "", "fix the failed checks"},
		{"/", "debian", "fix the failed checks"},
		{"/host", "", "fix the failed checks"},
		{"/host", "debian", "if the image does not contain /usr/bin/gpucdi and /usr/bin/gpucdi-nvml, run the doctor on the node"},
	} {
		e := examination{Node: Node{Root: host.NewRoot(tc.root), Program: "/usr/bin/gpucdi", Worker: "/usr/bin/gpucdi-nvml", Launch: &Launch{Image: tc.image}}}
		if got := e.remedyLaunch(); !strings.HasPrefix(got, tc.remedy) {
			t.Errorf("%+v: got %q", tc, got)
		}
	}
}
