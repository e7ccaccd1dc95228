package cdi_test

import (
	"debug/elf"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
)

var update = flag.Bool("update", false, "write the golden files")

func parts() cdi.Parts {
	return cdi.Parts{
		Libraries: []cdi.Library{
			{HostPath: "/drv/libnvidia-ml.so.580.95.05", SONAME: "libnvidia-ml.so.1", Machine: elf.EM_X86_64},
			{HostPath: "/drv/libcuda.so.580.95.05", SONAME: "libcuda.so.1", Aliases: []string{"libcuda.so"}, Machine: elf.EM_X86_64},
		},
		Binds:   []cdi.Bind{{HostPath: "/drv/nvidia-smi", ContainerPath: "/usr/bin/nvidia-smi"}},
		Control: []cdi.DeviceNode{{Path: "/dev/nvidiactl", Major: 195, Minor: 255}},
		GPUs: map[string][]cdi.DeviceNode{
			"GPU-a": {{Path: "/dev/nvidia1", Major: 195, Minor: 1}},
			"GPU-b": {{Path: "/dev/nvidia0", Major: 195, Minor: 0}},
		},
	}
}

func TestBuild(t *testing.T) {
	spec, err := cdi.Build(cdi.UserKind, inventory, parts(), []cdi.NameStrategy{cdi.ByIndex, cdi.ByUUID})
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []cdi.Format{cdi.YAML, cdi.JSON} {
		compareGolden(t, spec, format, "two-gpus."+string(format))
	}
}

func TestBuildMIGDevices(t *testing.T) {
	p := parts()
	parent := p.GPUs["GPU-a"][0]
	delete(p.GPUs, "GPU-a")
	for uuid, minors := range map[string][2]int64{"MIG-a": {147, 148}, "MIG-b": {156, 157}, "MIG-c": {156, 158}} {
		p.GPUs[uuid] = []cdi.DeviceNode{parent}
		for _, minor := range minors {
			p.GPUs[uuid] = append(p.GPUs[uuid], cdi.DeviceNode{Path: fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", minor), Major: 236, Minor: minor})
		}
	}
	spec, err := cdi.Build(cdi.UserKind, withMIG(), p, []cdi.NameStrategy{cdi.ByIndex, cdi.ByUUID})
	if err != nil {
		t.Fatal(err)
	}
	spec.ContainerEdits = specs.ContainerEdits{} // covered by the other golden files
	compareGolden(t, spec, cdi.YAML, "mig.yaml")
}

func compareGolden(t *testing.T, spec *specs.Spec, format cdi.Format, golden string) {
	t.Helper()
	golden = filepath.Join("testdata", golden)
	got, err := format.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(golden, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s differs, update with go test ./cdi -update:\n%s", golden, got)
	}
}

func TestBuildIsDeterministic(t *testing.T) {
	render := func() string {
		spec, err := cdi.Build(cdi.AgentKind, inventory, parts(), []cdi.NameStrategy{cdi.ByUUID})
		if err != nil {
			t.Fatal(err)
		}
		data, err := cdi.YAML.Marshal(spec)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	first := render()
	for range 50 {
		if again := render(); again != first {
			t.Fatalf("specs differ:\n%s\n%s", first, again)
		}
	}
}

func TestBuildExcludesUnhealthyGPUFromAll(t *testing.T) {
	faulty := inventory.WithFaults(func(uuid string) gpu.Fault { return map[string]gpu.Fault{"GPU-a": gpu.Gone()}[uuid] })
	spec, err := cdi.Build(cdi.AgentKind, faulty, parts(), []cdi.NameStrategy{cdi.ByUUID})
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string]string{}
	for _, d := range spec.Devices {
		for _, n := range d.ContainerEdits.DeviceNodes {
			nodes[d.Name] += n.Path
		}
	}
	if nodes["GPU-a"] != "/dev/nvidia1" || nodes["all"] != "/dev/nvidia0" {
		t.Errorf("got devices %v", nodes)
	}
}

func TestBuildWithoutGPUs(t *testing.T) {
	if _, err := cdi.Build(cdi.AgentKind, inventory, cdi.Parts{}, []cdi.NameStrategy{cdi.ByUUID}); err == nil {
		t.Error("built a spec without devices")
	}
}

func TestBuildARM64(t *testing.T) {
	p := parts()
	for i := range p.Libraries {
		p.Libraries[i].Machine = elf.EM_AARCH64
	}
	spec, err := cdi.Build(cdi.AgentKind, inventory, p, []cdi.NameStrategy{cdi.ByUUID})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range spec.ContainerEdits.Mounts {
		if strings.Contains(m.ContainerPath, "x86_64") {
			t.Errorf("unexpected mount at %s", m.ContainerPath)
		}
	}
}

func TestBuildSetsTritonLibcudaPath(t *testing.T) {
	for _, tc := range []struct {
		name      string
		libraries []string // SONAMEs in the spec
		machine   elf.Machine
		want      []string
	}{
		{"x86-64", []string{"libcuda.so.1", "libnvidia-ml.so.1"}, elf.EM_X86_64, []string{"/usr/lib64"}},
		{"arm64", []string{"libcuda.so.1", "libnvidia-ml.so.1"}, elf.EM_AARCH64, []string{"/usr/lib64"}},
		{"no libcuda", []string{"libnvidia-ml.so.1"}, elf.EM_X86_64, nil},
		{"no libraries", nil, elf.EM_X86_64, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := parts()
			p.Libraries = slices.DeleteFunc(p.Libraries, func(l cdi.Library) bool { return !slices.Contains(tc.libraries, l.SONAME) })
			for i := range p.Libraries {
				p.Libraries[i].Machine = tc.machine
			}
			spec, err := cdi.Build(cdi.AgentKind, inventory, p, []cdi.NameStrategy{cdi.ByUUID})
			if err != nil {
				t.Fatal(err)
			}
			checkEnvironment(t, spec)
			got := valuesOf(spec, "TRITON_LIBCUDA_PATH")
			if !slices.Equal(got, tc.want) {
				t.Fatalf("got TRITON_LIBCUDA_PATH %q, want %q", got, tc.want)
			}
			for _, dir := range got {
				for _, name := range []string{"libcuda.so.1", "libcuda.so"} {
					if !strings.Contains(mountsOf(spec)+";", " "+dir+"/"+name+";") {
						t.Errorf("no mount at %s/%s", dir, name)
					}
				}
			}
		})
	}
}

// checkEnvironment checks the environment of a spec with GPUs. Setting the variables in the loop would override values
// of images and users that programs depend on.
func checkEnvironment(t *testing.T, spec *specs.Spec) {
	t.Helper()
	if got := valuesOf(spec, "NVIDIA_VISIBLE_DEVICES"); !slices.Equal(got, []string{"void"}) {
		t.Errorf("got NVIDIA_VISIBLE_DEVICES %q, want void once", got)
	}
	for _, name := range []string{
		"LD_LIBRARY_PATH", "LIBRARY_PATH", "LD_PRELOAD", "PATH", "CUDA_PATH", "CUDA_HOME", "CUDA_ROOT",
		"NUMBA_CUDA_DRIVER", "NVSHMEM_CUDA_PATH", "CONDA_OVERRIDE_CUDA", "UV_CUDA_DRIVER_VERSION",
	} {
		if got := valuesOf(spec, name); got != nil {
			t.Errorf("unexpected %s %q", name, got)
		}
	}
}

// valuesOf returns the values of an environment variable in the edits of a spec and of its devices.
func valuesOf(spec *specs.Spec, name string) (values []string) {
	env := slices.Clone(spec.ContainerEdits.Env)
	for _, d := range spec.Devices {
		env = append(env, d.ContainerEdits.Env...)
	}
	for _, variable := range env {
		if value, ok := strings.CutPrefix(variable, name+"="); ok {
			values = append(values, value)
		}
	}
	return values
}

func TestBuildWithHook(t *testing.T) {
	p := parts()
	p.Hook = "/opt/gpucdi/gpucdi-hook"
	spec, err := cdi.Build(cdi.AgentKind, inventory, p, []cdi.NameStrategy{cdi.ByUUID})
	if err != nil {
		t.Fatal(err)
	}
	if len(spec.ContainerEdits.Hooks) != 1 {
		t.Fatalf("got hooks %+v, want one", spec.ContainerEdits.Hooks)
	}
	hook := spec.ContainerEdits.Hooks[0]
	if hook.HookName != "createContainer" || hook.Path != p.Hook || hook.Timeout == nil {
		t.Errorf("got hook %+v", hook)
	}
	const dir = "/usr/lib/x86_64-linux-gnu/"
	want := []string{
		"gpucdi-hook", "--driver-version=" + driverVersion,
		dir + "libnvidia-ml.so.1", dir + "libcuda.so.1", dir + "libcuda.so",
	}
	if !slices.Equal(hook.Args, want) {
		t.Errorf("got arguments %q, want %q", hook.Args, want)
	}
	if len(hook.Env) == 0 {
		t.Error("hook has no environment: runtimes may use the image's")
	}
}

func TestBuildHookGraphicsFlag(t *testing.T) {
	for soname, want := range map[string]bool{"libEGL_nvidia.so.0": true, "libnvcuvid.so.1": false} {
		p := parts()
		p.Hook = "/opt/gpucdi/gpucdi-hook"
		p.Libraries = append(p.Libraries, cdi.Library{HostPath: "/" + libDir + soname, SONAME: soname})
		spec, err := cdi.Build(cdi.AgentKind, inventory, p, []cdi.NameStrategy{cdi.ByUUID})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(spec.ContainerEdits.Hooks[0].Args, "--graphics"); got != want {
			t.Errorf("with %s: got --graphics %t, want %t", soname, got, want)
		}
	}
}

// CUDA forward compatibility is limited to data center and workstation GPUs.
func TestBuildHookDriverVersionFlag(t *testing.T) {
	inv := *inventory
	inv.GPUs = slices.Clone(inventory.GPUs)
	for _, tc := range []struct {
		a, b    string // products
		exclude string // UUID of a GPU to leave out of the spec
		want    bool
	}{
		{"NVIDIA H100 80GB HBM3", "NVIDIA RTX A6000", "", true},
		{"NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090", "", false},
		{"NVIDIA H100 80GB HBM3", "NVIDIA GeForce RTX 4090", "GPU-b", true},
		{"NVIDIA TITAN V", "Tesla T4", "GPU-b", false},
	} {
		inv.GPUs[0].Product, inv.GPUs[1].Product = tc.a, tc.b
		p := parts()
		p.Hook = "/opt/gpucdi/gpucdi-hook"
		delete(p.GPUs, tc.exclude)
		spec, err := cdi.Build(cdi.AgentKind, &inv, p, []cdi.NameStrategy{cdi.ByUUID})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.HasPrefix(spec.ContainerEdits.Hooks[0].Args[1], "--driver-version="); got != tc.want {
			t.Errorf("%s and %s, without %q: got --driver-version %t, want %t", tc.a, tc.b, tc.exclude, got, tc.want)
		}
	}
}
