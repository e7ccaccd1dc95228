package container_test

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/container"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// migDevice is a MIG device, by the index of its GPU and its index in the GPU.
type migDevice struct{ gpu, index int }

// A container with MIG devices cannot access other MIG devices of the same GPU.
func TestContainerMIGDevices(t *testing.T) {
	t.Parallel()
	m := start(t, container.Config{Profile: simdriver.A100MIG()})
	generate(t, m)
	const kind = "nvidia.com/gpu="
	gpus := m.Driver.State().GPUs
	var all []migDevice
	for i, g := range gpus {
		for j := range g.MIG {
			all = append(all, migDevice{i, j})
		}
	}
	for _, tc := range []struct {
		name       string
		devices    []string // CDI names
		migDevices []migDevice
		whole      []int
	}{
		{"one by index", []string{kind + "0:1"}, []migDevice{{0, 1}}, nil},
		{"one by uuid", []string{kind + gpus[2].MIG[0].UUID}, []migDevice{{2, 0}}, nil},
		{"one by both names", []string{kind + "3:1", kind + gpus[3].MIG[1].UUID}, []migDevice{{3, 1}}, nil},
		{"two of one GPU and one of another", []string{kind + "0:6", kind + "0:2", kind + "3:0"}, []migDevice{{0, 2}, {0, 6}, {3, 0}}, nil},
		{"one and a whole GPU", []string{kind + "1:0", kind + "6"}, []migDevice{{1, 0}}, []int{6}},
		{"all", []string{kind + "all"}, all, []int{5, 6, 7}},
	} {
		for _, runtime := range []container.Runtime{container.Runc, container.Crun} {
			t.Run(path.Base(string(runtime))+"/"+tc.name, func(t *testing.T) {
				spec, err := m.Spec(t.Context(), tc.devices...)
				if err != nil {
					t.Fatal(err)
				}
				v := launch(t, m, runtime, spec)
				v.checkMIGNodes(m, tc.migDevices, tc.whole)
				v.checkMIGSMI(tc.migDevices, tc.whole)
				v.checkOtherMIGDevices(m, tc.migDevices)
			})
		}
	}
}

// capabilities returns the minor numbers of the device nodes in nvidia-caps for a MIG device's GPU instance and compute
// instance, as the driver reports them in /proc.
func (v *view) capabilities(m *container.Machine, p migDevice) []int {
	v.t.Helper()
	g := v.gpus[p.gpu]
	instance := fmt.Sprintf("/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d", g.Minor, g.MIG[p.index].GPUInstance)
	minors := make([]int, 2)
	for i, file := range []string{instance + "/access", fmt.Sprintf("%s/ci%d/access", instance, g.MIG[p.index].CI)} {
		text, err := os.ReadFile(m.Path(file))
		if err != nil {
			v.t.Fatal(err)
		}
		if _, err := fmt.Sscanf(string(text), "DeviceFileMinor: %d", &minors[i]); err != nil {
			v.t.Fatal(err)
		}
	}
	return minors
}

// gpusOf returns the indexes of the GPUs of MIG devices, and of whole GPUs.
func gpusOf(migDevices []migDevice, whole []int) []int {
	gpus := slices.Clone(whole)
	for _, p := range migDevices {
		gpus = append(gpus, p.gpu)
	}
	slices.Sort(gpus)
	return slices.Compact(gpus)
}

// checkMIGNodes requires exactly the device nodes of the MIG devices and whole GPUs, and controlNodes.
func (v *view) checkMIGNodes(m *container.Machine, migDevices []migDevice, whole []int) {
	want := append([]string{"nvidia-caps"}, controlNodes...)
	for _, i := range gpusOf(migDevices, whole) {
		want = append(want, fmt.Sprintf("nvidia%d", v.gpus[i].Minor))
	}
	var caps []string
	for _, p := range migDevices {
		for _, minor := range v.capabilities(m, p) {
			caps = append(caps, fmt.Sprintf("nvidia-cap%d", minor))
		}
	}
	for dir, want := range map[string][]string{"/dev": want, "/dev/nvidia-caps": caps} {
		got := slices.DeleteFunc(v.exec("probe", "list", dir), func(name string) bool { return !strings.HasPrefix(name, "nvidia") })
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			v.t.Errorf("%s has the device nodes %v, want %v", dir, got, want)
		}
	}
	for i := range caps {
		caps[i] = "/dev/nvidia-caps/" + caps[i]
	}
	v.expect("open", caps, "ok", "open ENXIO")
}

func (v *view) checkMIGSMI(migDevices []migDevice, whole []int) {
	var want []string
	for i, gpu := range gpusOf(migDevices, whole) {
		g, shown := v.gpus[gpu], 0
		want = append(want, fmt.Sprintf("GPU %d: %s (UUID: %s)", i, g.Name, g.UUID))
		for _, p := range migDevices {
			if p.gpu == gpu {
				want = append(want, fmt.Sprintf("Device %2d: (UUID: %s)", shown, g.MIG[p.index].UUID))
				shown++
			}
		}
	}
	got := v.exec("nvidia-smi", "-L")
	if len(got) != len(want) {
		v.t.Fatalf("nvidia-smi -L lists\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for i := range want {
		if !strings.HasSuffix(got[i], want[i]) {
			v.t.Errorf("nvidia-smi -L lists %q, want %q", got[i], want[i])
		}
	}
}

// checkOtherMIGDevices requires that the container cannot open device nodes of other MIG devices of the same GPUs.
func (v *view) checkOtherMIGDevices(m *container.Machine, migDevices []migDevice) {
	devices, err := os.ReadFile(m.Path("/proc/devices"))
	if err != nil {
		v.t.Fatal(err)
	}
	major := ""
	for line := range strings.Lines(string(devices)) {
		if number, name, _ := strings.Cut(strings.TrimSpace(line), " "); name == "nvidia-caps" {
			major = number
		}
	}
	var others []string
	for _, p := range migDevices {
		for index := range v.gpus[p.gpu].MIG {
			if other := (migDevice{p.gpu, index}); !slices.Contains(migDevices, other) {
				for _, minor := range v.capabilities(m, other) {
					others = append(others, fmt.Sprintf("%s:%d", major, minor))
				}
			}
		}
	}
	v.expect("node", others, "open EPERM")
}
