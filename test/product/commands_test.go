package product_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/product"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// host is a host root with a simulated driver, and a gpucdi binary.
type host struct {
	binary string
	root   string
	driver *simdriver.Driver
	user   *syscall.Credential // user that runs gpucdi; nil: the test's
}

func newHost(t *testing.T, binary string, profile simdriver.Profile) host {
	t.Helper()
	root := t.TempDir()
	driver, err := simdriver.Install(root, profile)
	if err != nil {
		t.Fatal(err)
	}
	return host{binary: binary, root: root, driver: driver}
}

// run runs a gpucdi command on the host, and returns its exit code and output.
func (h host) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	if h.root != "" {
		args = append(args, "--host-root", h.root)
	}
	cmd := exec.Command(h.binary, args...)
	cmd.Env = os.Environ()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: h.user}
	if h.driver != nil {
		cmd.Env = append(cmd.Env, h.driver.Env("")...)
	}
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// must runs a command that must succeed, and returns its standard output.
func (h host) must(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := h.run(t, args...)
	if code != 0 {
		t.Fatalf("gpucdi %s: exit code %d\n%s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

// inventory is the output of list -o json.
type inventory struct {
	Driver struct {
		Version, CUDA string
		Confidential  bool
	}
	GPUs []struct {
		UUID, PCIBusID, Product, Architecture, ComputeCapability, MIG string
		PCIeRoot, Brand, AddressingMode                               string
		PCIeSwitches                                                  []string
		Fault                                                         fault
		Index, Minor, NUMANode                                        int
		MemoryBytes                                                   uint64
		Links                                                         []struct {
			Peer, PCIe string
			NVLinks    int
		}
		MIGDevices []struct {
			UUID, Profile                       string
			Fault                               fault
			Index, GPUInstance, ComputeInstance int
			MemoryBytes                         uint64
			Placement                           struct{ Start, Size int }
		}
	}
	Unreadable []struct {
		Index int
		Fault fault
	}
}

type fault struct{ Code, Message, Remedy string }

func (h host) list(t *testing.T) inventory {
	t.Helper()
	var inv inventory
	if err := json.Unmarshal([]byte(h.must(t, "list", "-o", "json")), &inv); err != nil {
		t.Fatal(err)
	}
	return inv
}

func TestCommands(t *testing.T) {
	binary, err := product.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, binary string)
	}{
		{"list GPUs", listGPUs},
		{"list links", listLinks},
		{"list PCIe paths", listPCIe},
		{"list MIG devices", listMIG},
		{"incomplete MIG device", incompleteMIG},
		{"generate MIG devices", generateMIG},
		{"GPU fails", gpuFails},
		{"GPU crashes the driver worker", gpuCrashes},
		{"GPU hangs", gpuHangs},
		{"generate device nodes", deviceNodes},
		{"generate is byte-stable", byteStable},
		{"generate features", features},
		{"confidential computing", confidential},
		{"generate --output", outputFile},
		{"generate --device", selectGPUs},
		{"generate --check", checkFile},
		{"named pipes do not block", namedPipes},
		{"generate without root", unprivileged},
		{"generate --class", otherClasses},
		{"no driver", noDriver},
		{"driver not loaded", notLoaded},
		{"status without agent", noAgent},
		{"doctor on a host without Kubernetes", doctorWithoutKubernetes},
		{"unlabel outside of a cluster", noCluster},
		{"config check", configCheck},
		{"help and completion", help},
		{"driver worker missing", workerMissing},
		{"SIGTERM during start", terminateEarly},
		{"usage errors", usageErrors},
		{"memory limit", memoryLimit},
		{"memory limit not possible", memoryLimitUnsupported},
		{"memory limit fails", memoryLimitFails},
		{"compute mode", computeMode},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, binary) })
	}
}

func listGPUs(t *testing.T, binary string) {
	h := newHost(t, binary, simdriver.H100x8())
	inv := h.list(t)
	if inv.Driver.Version != "580.95.05" || inv.Driver.CUDA != "13.0" {
		t.Errorf("driver %+v", inv.Driver)
	}
	want := h.driver.State().GPUs
	if len(inv.GPUs) != len(want) {
		t.Fatalf("%d GPUs, want %d", len(inv.GPUs), len(want))
	}
	for i, g := range inv.GPUs {
		w := want[i]
		got := fmt.Sprint(g.UUID, g.Index, g.Minor, g.Product, g.MemoryBytes, g.NUMANode, g.Architecture, g.ComputeCapability, g.MIG, g.Fault.Code)
		expect := fmt.Sprint(w.UUID, i, w.Minor, w.Name, w.Memory, w.NUMANode, "Hopper", "9.0", "disabled", "")
		if got != expect {
			t.Errorf("got  %s\nwant %s", got, expect)
		}
		if !strings.EqualFold("0000"+g.PCIBusID, w.BusID) {
			t.Errorf("PCI bus ID %s, want %s", g.PCIBusID, w.BusID)
		}
		if len(g.Links) != len(want)-1 {
			t.Errorf("%d links, want %d", len(g.Links), len(want)-1)
		}
		for _, l := range g.Links {
			if l.NVLinks != 18 {
				t.Errorf("%s to %s: %d NVLinks, want 18", g.UUID, l.Peer, l.NVLinks)
			}
		}
	}
}

// listPCIe compares the PCIe paths with the tree of the simulated machine.
func listPCIe(t *testing.T, binary string) {
	inv := newHost(t, binary, simdriver.GPUs16()).list(t)
	gpus := inv.GPUs
	for i, g := range gpus {
		if g.Brand != "Nvidia" || g.AddressingMode != "HMM" || len(g.PCIeSwitches) != 2 || !strings.HasPrefix(g.PCIeRoot, "pci0000:") {
			t.Fatalf("GPU %d: %+v", i, g)
		}
		for j, other := range gpus[:i] {
			// Every four GPUs share a root complex and its outer switch, and every two of them an inner switch.
			root, outer, inner := g.PCIeRoot == other.PCIeRoot, g.PCIeSwitches[1] == other.PCIeSwitches[1], g.PCIeSwitches[0] == other.PCIeSwitches[0]
			if root != (i/4 == j/4) || outer != root || inner != (i/2 == j/2) {
				t.Errorf("GPU %d at %s %v, GPU %d at %s %v", i, g.PCIeRoot, g.PCIeSwitches, j, other.PCIeRoot, other.PCIeSwitches)
			}
		}
	}
	desktop := newHost(t, binary, simdriver.GTX1060x2()).list(t).GPUs
	if len(desktop[0].PCIeSwitches) > 0 || desktop[0].PCIeRoot == "" || desktop[0].Brand != "GeForce" || desktop[0].AddressingMode != "None" {
		t.Errorf("GPU without switches: %+v", desktop[0])
	}
}

func listLinks(t *testing.T, binary string) {
	out := newHost(t, binary, simdriver.PCIe4()).must(t, "list")
	_, links, _ := strings.Cut(out, "LINKS")
	want := `
0      X    PIX  SYS  SYS
1      PIX  X    SYS  SYS
2      SYS  SYS  X    PIX
3      SYS  SYS  PIX  X
`
	if !strings.HasSuffix("LINKS"+links, want) {
		t.Errorf("links\n%s\nwant\n%s", links, want)
	}
	desktop := newHost(t, binary, simdriver.GTX1060x2()).list(t)
	for _, g := range desktop.GPUs {
		if g.NUMANode != -1 || g.MIG != "unsupported" {
			t.Errorf("%s: NUMA node %d, MIG %s", g.UUID, g.NUMANode, g.MIG)
		}
	}
}

func listMIG(t *testing.T, binary string) {
	profile := simdriver.A100MIG()
	h := newHost(t, binary, profile)
	if err := h.driver.Partition(profile.GPUs[4].UUID, "1g.5gb+me", "1c.3g.20gb"); err != nil {
		t.Fatal(err)
	}
	state := h.driver.State()
	for i, g := range h.list(t).GPUs {
		if mode := map[int]string{0: "disabled", 1: "enabled"}[state.GPUs[i].MIGMode]; g.MIG != mode {
			t.Errorf("GPU %d: MIG %s, want %s", i, g.MIG, mode)
		}
		if len(g.MIGDevices) != len(state.GPUs[i].MIG) {
			t.Fatalf("GPU %d: %+v, want %+v", i, g.MIGDevices, state.GPUs[i].MIG)
		}
		for j, m := range g.MIGDevices {
			w := state.GPUs[i].MIG[j]
			got := fmt.Sprint(m.UUID, m.Index, m.GPUInstance, m.ComputeInstance, m.Placement.Start, m.Fault.Code)
			if want := fmt.Sprint(w.UUID, j, w.GPUInstance, w.CI, w.Start, ""); got != want {
				t.Errorf("MIG device %d:%d: %s, want %s", i, j, got, want)
			}
		}
	}
	table := h.must(t, "list")
	for _, row := range []string{
		fmt.Sprintf("0:6  %s  1g.5gb      4.8 GiB   13  0   6-6", state.GPUs[0].MIG[6].UUID),
		fmt.Sprintf("2:0  %s  3g.20gb     19.6 GiB  1   0   4-7", state.GPUs[2].MIG[0].UUID),
		fmt.Sprintf("4:0  %s  1c.3g.20gb  19.6 GiB  1   0   4-7", state.GPUs[4].MIG[0].UUID),
		fmt.Sprintf("4:1  %s  1g.5gb+me   4.8 GiB   7   0   0-0", state.GPUs[4].MIG[1].UUID),
	} {
		if !strings.Contains(table, row) {
			t.Errorf("%q is not in\n%s", row, table)
		}
	}
}

func generateMIG(t *testing.T, binary string) {
	h := newHost(t, binary, simdriver.A100MIG())
	gpus := h.driver.State().GPUs
	spec := h.must(t, "generate", "--device", "0:2,6,"+gpus[3].MIG[1].UUID)
	for _, name := range []string{`"0:2"`, gpus[0].MIG[2].UUID, `"6"`, gpus[6].UUID, `"3:1"`, gpus[3].MIG[1].UUID, "all"} {
		if !strings.Contains(spec, "name: "+name+"\n") {
			t.Errorf("no %s in\n%s", name, spec)
		}
	}
	if named := strings.Count(spec, "- name: "); named != 7 {
		t.Errorf("%d device names, want 7:\n%s", named, spec)
	}
	code, _, stderr := h.run(t, "generate", "--device", "0")
	if code != 1 || !strings.Contains(stderr, "not found: 0; available: 0:0, "+gpus[0].MIG[0].UUID) {
		t.Errorf("--device with a GPU in MIG mode: exit code %d, %s", code, stderr)
	}
}

func incompleteMIG(t *testing.T, binary string) {
	h := newHost(t, binary, simdriver.A100MIG())
	gpus := h.driver.State().GPUs
	minors := filepath.Join(h.root, "proc/driver/nvidia-caps/mig-minors")
	without := strings.Replace(read(t, h, "proc/driver/nvidia-caps/mig-minors"), "gpu0/gi8/ci0/access", "gpu0/gi8/other", 1)
	if err := os.WriteFile(minors, []byte(without), 0o444); err != nil {
		t.Fatal(err)
	}
	_, spec, warning := h.run(t, "generate", "--names", "uuid")
	for _, m := range gpus[0].MIG {
		bad := m.GPUInstance == 8
		if strings.Contains(spec, m.UUID) == bad || strings.Contains(warning, m.UUID) != bad {
			t.Errorf("%s of GPU instance %d; warnings: %s", m.UUID, m.GPUInstance, warning)
		}
	}
	if !strings.Contains(warning, "gpu0/gi8/ci0/access") || !strings.Contains(warning, "without MIG devices") {
		t.Errorf("warnings: %s", warning)
	}
}

func gpuCrashes(t *testing.T, binary string) {
	gpuUnresponsive(t, binary, simdriver.Fault{Func: "nvmlDeviceGetMinorNumber", Crash: true})
}

func gpuHangs(t *testing.T, binary string) {
	gpuUnresponsive(t, binary, simdriver.Fault{Func: "nvmlDeviceGetMinorNumber", Hang: time.Hour})
}

// gpuUnresponsive checks that a fault of one GPU that crashes or blocks the driver worker makes only this GPU
// unreadable.
func gpuUnresponsive(t *testing.T, binary string, fault simdriver.Fault) {
	h := newHost(t, binary, simdriver.H100x8())
	fault.GPU = h.driver.State().GPUs[3].UUID
	if err := h.driver.InjectFault(fault); err != nil {
		t.Fatal(err)
	}
	inv := h.list(t)
	if len(inv.GPUs) != 7 || len(inv.Unreadable) != 1 || inv.Unreadable[0].Index != 3 || inv.Unreadable[0].Fault.Code != "unresponsive" {
		t.Errorf("%d GPUs listed, unreadable %+v", len(inv.GPUs), inv.Unreadable)
	}
}

func gpuFails(t *testing.T, binary string) {
	const lost = 15 // NVML_ERROR_GPU_IS_LOST
	// listed: whether the GPU is in GPUs, with a fault; otherwise it is in Unreadable.
	for function, listed := range map[string]bool{
		"nvmlDeviceGetUUID":             false,
		"nvmlDeviceGetMinorNumber":      true,
		"nvmlDeviceGetPciInfo_v3":       true,
		"nvmlDeviceGetMemoryInfo":       true,
		"nvmlDeviceGetHandleByIndex_v2": false,
		"nvmlDeviceGetName":             true,
		"nvmlDeviceGetMigMode":          true,
	} {
		t.Run(function, func(t *testing.T) {
			h := newHost(t, binary, simdriver.H100x8())
			bad := h.driver.State().GPUs[3].UUID
			if err := h.driver.InjectFault(simdriver.Fault{GPU: bad, Func: function, Return: lost}); err != nil {
				t.Fatal(err)
			}
			inv := h.list(t)
			var healthy, faulty int
			for _, g := range inv.GPUs {
				switch {
				case g.Fault == (fault{}):
					healthy++
				case g.UUID == bad && g.Fault.Code == "unreadable":
					faulty++
				default:
					t.Errorf("%s: fault %+v", g.UUID, g.Fault)
				}
			}
			if healthy != 7 || (faulty == 1) != listed || (len(inv.Unreadable) == 1) == listed {
				t.Errorf("%d healthy, %d faulty, unreadable %+v", healthy, faulty, inv.Unreadable)
			}
			_, spec, warning := h.run(t, "generate", "--names", "uuid")
			if strings.Contains(spec, bad) || strings.Count(spec, "name: GPU-") != 7 {
				t.Errorf("spec with %d GPUs", strings.Count(spec, "name: GPU-"))
			}
			if !strings.Contains(warning, "GPU excluded") {
				t.Errorf("no warning about the GPU: %s", warning)
			}
		})
	}
}

func deviceNodes(t *testing.T, binary string) {
	for _, profile := range []simdriver.Profile{
		simdriver.H100x8(), simdriver.A100MIG(), simdriver.PCIe4(), simdriver.GTX1060x2(), simdriver.GPUs16(),
	} {
		h := newHost(t, binary, profile)
		var spec struct {
			CDIVersion string
			Devices    []struct {
				Name           string
				ContainerEdits struct {
					DeviceNodes []struct {
						Path, Type   string
						Major, Minor int
					}
				}
			}
		}
		if err := json.Unmarshal([]byte(h.must(t, "generate", "--format", "json")), &spec); err != nil {
			t.Fatal(err)
		}
		nodes := map[string][]string{}
		for _, d := range spec.Devices {
			for _, n := range d.ContainerEdits.DeviceNodes {
				nodes[d.Name] = append(nodes[d.Name], fmt.Sprintf("%s %s %d:%d", n.Path, n.Type, n.Major, n.Minor))
			}
		}
		want := wantNodes(t, h)
		if !reflect.DeepEqual(nodes, want) {
			t.Errorf("%s: device nodes\n%v\nwant\n%v", profile.Name, nodes, want)
		}
		if spec.CDIVersion != "0.5.0" {
			t.Errorf("%s: CDI version %s", profile.Name, spec.CDIVersion)
		}
	}
}

// wantNodes returns the device nodes that the driver's state and /proc require, by CDI device name.
func wantNodes(t *testing.T, h host) map[string][]string {
	t.Helper()
	major := ""
	for line := range strings.Lines(read(t, h, "proc/devices")) {
		if number, name, _ := strings.Cut(strings.TrimSpace(line), " "); name == "nvidia-caps" {
			major = number
		}
	}
	want := map[string][]string{}
	add := func(nodes []string, names ...string) {
		for _, name := range append(names, "all") {
			for _, n := range nodes {
				if !slices.Contains(want[name], n) {
					want[name] = append(want[name], n)
				}
			}
		}
	}
	for i, g := range h.driver.State().GPUs {
		nodes := []string{fmt.Sprintf("/dev/nvidia%d c 195:%d", g.Minor, g.Minor)}
		if g.MIGMode != 1 {
			add(nodes, fmt.Sprint(i), g.UUID)
			continue
		}
		for j, m := range g.MIG {
			instance := fmt.Sprintf("proc/driver/nvidia/capabilities/gpu%d/mig/gi%d", g.Minor, m.GPUInstance)
			with := slices.Clone(nodes)
			for _, file := range []string{instance + "/access", fmt.Sprintf("%s/ci%d/access", instance, m.CI)} {
				var minor int
				if _, err := fmt.Sscanf(read(t, h, file), "DeviceFileMinor: %d", &minor); err != nil {
					t.Fatal(err)
				}
				with = append(with, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d c %s:%d", minor, major, minor))
			}
			add(with, fmt.Sprintf("%d:%d", i, j), m.UUID)
		}
	}
	return want
}

func read(t *testing.T, h host, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(h.root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func byteStable(t *testing.T, binary string) {
	h := newHost(t, binary, simdriver.H100x8())
	first := h.must(t, "generate")
	for range 5 {
		if again := h.must(t, "generate"); again != first {
			t.Fatalf("specs differ:\n%s\n%s", first, again)
		}
	}
}

func features(t *testing.T, binary string) {
	h := newHost(t, binary, simdriver.H100x8())
	version := h.driver.State().Version
	const libs, libs64 = "/usr/lib/x86_64-linux-gnu/", "/usr/lib64/"
	marks := map[string][]string{ // mounts that identify a feature
		"compute":  {libs + "libcuda.so", libs64 + "libnvidia-ptxjitcompiler.so.1", "/usr/bin/nvidia-cuda-mps-server", "/etc/OpenCL/vendors/nvidia.icd"},
		"utility":  {"/usr/bin/nvidia-smi"},
		"graphics": {libs + "libGLX_nvidia.so.0", libs64 + "libnvidia-glcore.so." + version, libs + "libnvidia-egl-gbm.so.1", libs + "gbm/nvidia-drm_gbm.so", "/usr/share/vulkan/icd.d/nvidia_icd.json", "/usr/share/egl/egl_external_platform.d/20_nvidia_xcb.json"},
		"video":    {libs + "libnvcuvid.so.1", libs64 + "vdpau/libvdpau_nvidia.so.1", libs + "libnvidia-opticalflow.so"},
		"display":  {libs + "libnvidia-cfg.so.1", "/usr/lib/xorg/modules/drivers/nvidia_drv.so", "/usr/lib64/xorg/modules/extensions/libglxserver_nvidia.so", "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf"},
	}
	shared := []string{libs + "libcuda.so"}
	for feature := range marks {
		var spec specs.Spec
		if err := json.Unmarshal([]byte(h.must(t, "generate", "--format", "json", "--features", feature)), &spec); err != nil {
			t.Fatal(err)
		}
		mounted := map[string]bool{}
		for _, m := range spec.ContainerEdits.Mounts {
			mounted[m.ContainerPath] = true
			if strings.Contains(m.ContainerPath, "settings") || strings.Contains(m.ContainerPath, "gtk") {
				t.Errorf("%s mounts %s", feature, m.ContainerPath)
			}
		}
		for of, paths := range marks {
			for _, path := range paths {
				if of == feature && !mounted[path] {
					t.Errorf("%s does not mount %s", feature, path)
				}
				if of != feature && mounted[path] && !slices.Contains(shared, path) {
					t.Errorf("%s mounts %s, which belongs to %s", feature, path, of)
				}
			}
		}
		dri := 0
		for _, n := range spec.Devices[0].ContainerEdits.DeviceNodes {
			if strings.HasPrefix(n.Path, "/dev/dri/") {
				dri++
			}
		}
		if wanted := feature == "graphics" || feature == "display"; wanted && dri != 4 || !wanted && dri != 0 {
			t.Errorf("%s injects %d nodes below /dev/dri", feature, dri)
		}
	}
	if one, two := h.must(t, "generate"), h.must(t, "generate", "--features", "video,utility,compute"); one != two {
		t.Error("compute, utility and video are not the default, or their order matters")
	}
}

// confidential checks that libnvidia-pkcs11, which CUDA opens only with confidential computing, is mounted only if
// confidential computing or protected PCIe is on, or the driver has a query for these settings that fails with an error
// other than NVML_ERROR_NOT_SUPPORTED.
func confidential(t *testing.T, binary string) {
	const settings, state = "nvmlSystemGetConfComputeSettings", "nvmlSystemGetConfComputeState"
	const notSupported, unknown = 3, 999 // NVML_ERROR_…
	on := func(s *simdriver.State) { s.Confidential = true }
	returns := func(function string, code int) func(*simdriver.State) {
		return func(s *simdriver.State) { s.Faults = []simdriver.Fault{{Func: function, Return: code}} }
	}
	for _, tc := range []struct {
		name   string
		lacks  []string // functions that older drivers lack
		change func(*simdriver.State)
		want   bool
	}{
		{name: "off"},
		{name: "on", change: on, want: true},
		{name: "protected PCIe", change: func(s *simdriver.State) { s.ProtectedPCIe = true }, want: true},
		{name: "not supported", change: returns(settings, notSupported)},
		{name: "unknown", change: returns(settings, unknown), want: true},
		{name: "older driver, off", lacks: []string{settings}},
		{name: "older driver, on", lacks: []string{settings}, change: on, want: true},
		{name: "older driver, not supported", lacks: []string{settings}, change: returns(state, notSupported)},
		{name: "older driver, unknown", lacks: []string{settings}, change: returns(state, unknown), want: true},
		{name: "oldest driver", lacks: []string{settings, state}, change: on},
	} {
		h := newHost(t, binary, simdriver.H100x8())
		err := errors.Join(h.driver.RemoveFunctions(tc.lacks...), h.driver.Update(func(s *simdriver.State) error {
			if tc.change != nil {
				tc.change(s)
			}
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Contains(h.must(t, "generate"), "/usr/lib64/libnvidia-pkcs11-openssl3.so.")
		if got != tc.want {
			t.Errorf("%s: library mounted: %v, want %v", tc.name, got, tc.want)
		}
		if h.list(t).Driver.Confidential != tc.want {
			t.Errorf("%s: list does not report confidential: %v", tc.name, tc.want)
		}
	}
}

func outputFile(t *testing.T, binary string) {
	h := newHost(t, binary, simdriver.GTX1060x2())
	for _, name := range []string{"nvidia.yaml", "nvidia.json"} {
		file := filepath.Join(t.TempDir(), "cdi", name)
		h.must(t, "generate", "--output", file, "--kind", "example.com/card")
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if json.Valid(data) != strings.HasSuffix(name, ".json") || !strings.Contains(string(data), "example.com/card") {
			t.Errorf("%s contains %s", name, data)
		}
		if info, err := os.Stat(file); err != nil || info.Mode() != 0o644 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
}

func selectGPUs(t *testing.T, binary string) {
	h := newHost(t, binary, simdriver.H100x8())
	gpus := h.driver.State().GPUs
	out := h.must(t, "generate", "--format", "json", "--names", "index", "--device", "6,"+gpus[1].UUID, "--device", "6")
	var spec specs.Spec
	if err := json.Unmarshal([]byte(out), &spec); err != nil {
		t.Fatal(err)
	}
	nodes := map[string]int{}
	for _, d := range spec.Devices {
		nodes[d.Name] = len(d.ContainerEdits.DeviceNodes)
	}
	if want := map[string]int{"1": 1, "6": 1, "all": 2}; !maps.Equal(nodes, want) {
		t.Errorf("numbers of device nodes %v, want %v", nodes, want)
	}
	code, _, stderr := h.run(t, "generate", "--device", "8,0,GPU-x")
	if code != 1 || !strings.Contains(stderr, "not found: 8, GPU-x; available: 0, "+gpus[0].UUID) {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

func checkFile(t *testing.T, binary string) {
	h := newHost(t, binary, simdriver.GTX1060x2())
	for _, name := range []string{"nvidia.yaml", "nvidia.json"} {
		file := filepath.Join(t.TempDir(), name)
		code, missing, _ := h.run(t, "generate", "--check", file)
		if code != 1 || !strings.Contains(missing, "\n+") || strings.Contains(missing, "\n-") {
			t.Errorf("missing file: exit code %d\n%.300s", code, missing)
		}
		h.must(t, "generate", "--output", file)
		if out := h.must(t, "generate", "--check", file); out != "" {
			t.Errorf("current file: %s", out)
		}
		before, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		version := h.driver.State().Version
		if err := h.driver.Upgrade("590.12.34"); err != nil {
			t.Fatal(err)
		}
		code, difference, stderr := h.run(t, "generate", "--check", file)
		for _, part := range []string{"--- " + file, "libcuda.so." + version, "libcuda.so.590.12.34"} {
			if code != 1 || !strings.Contains(difference, part) || !strings.Contains(stderr, file+" is stale") {
				t.Errorf("after an upgrade: exit code %d, no %q in\n%s\n%s", code, part, difference, stderr)
			}
		}
		if after, err := os.ReadFile(file); err != nil || string(after) != string(before) {
			t.Errorf("--check changed the file: %v", err)
		}
		if err := h.driver.Upgrade(version); err != nil {
			t.Fatal(err)
		}
		h.must(t, "generate", "--check", file)
	}
}

// Opening a named pipe blocks until another process opens the other end.
func namedPipes(t *testing.T, binary string) {
	h := newHost(t, binary, simdriver.GTX1060x2())
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		args []string
		code int
	}{
		"output.yaml": {[]string{"generate", "--host-root", h.root, "--output"}, 0},
		"check.yaml":  {[]string{"generate", "--host-root", h.root, "--check"}, 1},
		"config.yaml": {[]string{"config", "check"}, 1},
	} {
		pipe := filepath.Join(dir, name)
		if err := unix.Mkfifo(pipe, 0o644); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, h.binary, append(tc.args, pipe)...)
		cmd.Env = append(os.Environ(), h.driver.Env("")...)
		out, _ := cmd.CombinedOutput()
		cancel()
		if code := cmd.ProcessState.ExitCode(); code != tc.code || code == 1 && !strings.Contains(string(out), "not a regular file") {
			t.Fatalf("%s: exit code %d, %s", name, code, out)
		}
	}
	h.must(t, "generate", "--check", filepath.Join(dir, "output.yaml"))
}

// As with rootless nerdctl, podman and docker, the device nodes are accessible to all users, and the spec is in a
// directory of the user.
func unprivileged(t *testing.T, binary string) {
	h := newHost(t, binary, simdriver.GTX1060x2())
	privileged := h.must(t, "generate")
	h.user = &syscall.Credential{Uid: 65534, Gid: 65534}
	for _, path := range []string{h.root, filepath.Dir(binary)} {
		if err := os.Chmod(filepath.Dir(path), 0o755); err != nil { // test directories are not accessible to others
			t.Fatal(err)
		}
	}
	home := t.TempDir()
	if err := os.Chown(home, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(home, ".config/cdi/nvidia.yaml")
	h.must(t, "generate", "--output", file)
	if spec, err := os.ReadFile(file); err != nil || string(spec) != privileged {
		t.Errorf("spec %s, %v", spec, err)
	}
	h.must(t, "generate", "--check", file)
	code, _, stderr := h.run(t, "generate", "--output", "/etc/cdi-of-root/nvidia.yaml")
	if code != 1 || !strings.Contains(stderr, "permission denied") {
		t.Errorf("directory owned by root: exit code %d, %s", code, stderr)
	}
}

func otherClasses(t *testing.T, binary string) {
	h := host{binary: binary, root: t.TempDir()} // without GPU and driver
	code, _, stderr := h.run(t, "generate", "--class", "gdrcopy")
	if code != 1 || !strings.Contains(stderr, "/dev/gdrdrv") || !strings.Contains(stderr, "modprobe gdrdrv") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if err := os.Mkdir(filepath.Join(h.root, "dev"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(filepath.Join(h.root, "dev/gdrdrv"), unix.S_IFCHR|0o666, int(unix.Mkdev(238, 0))); err != nil {
		t.Fatal(err)
	}
	for kind, args := range map[string][]string{
		"nvidia.com/gdrcopy": {"generate", "--class", "gdrcopy", "--format", "json"},
		"example.com/copy":   {"generate", "--class", "gdrcopy", "--format", "json", "--kind", "example.com/copy"},
	} {
		var spec specs.Spec
		if err := json.Unmarshal([]byte(h.must(t, args...)), &spec); err != nil {
			t.Fatal(err)
		}
		want := []*specs.DeviceNode{{Path: "/dev/gdrdrv", Type: "c", Major: 238}}
		if spec.Kind != kind || len(spec.Devices) != 1 || spec.Devices[0].Name != "all" || !reflect.DeepEqual(spec.Devices[0].ContainerEdits.DeviceNodes, want) {
			t.Errorf("%v: %+v", args, spec)
		}
	}
}

func noDriver(t *testing.T, binary string) {
	h := host{binary: binary, root: t.TempDir()}
	for _, command := range []string{"list", "generate"} {
		code, _, stderr := h.run(t, command)
		if code != 1 || !strings.Contains(stderr, "/usr/lib64/libnvidia-ml.so.1") || !strings.Contains(stderr, "--driver-root") {
			t.Errorf("%s: exit code %d, %s", command, code, stderr)
		}
	}
}

func notLoaded(t *testing.T, binary string) {
	h := newHost(t, binary, simdriver.GTX1060x2())
	if err := h.driver.Unload(); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := h.run(t, "list")
	if code != 1 || !strings.Contains(stderr, "modprobe nvidia") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

func noAgent(t *testing.T, binary string) {
	h := host{binary: binary}
	code, _, stderr := h.run(t, "status", "--address", "127.0.0.1:1")
	if code != 1 || !strings.Contains(stderr, "127.0.0.1:1") || !strings.Contains(stderr, "gpucdi serve") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

func doctorWithoutKubernetes(t *testing.T, binary string) {
	h := newHost(t, binary, simdriver.H100x8())
	args := []string{"doctor", "--kubelet-dir", "/nowhere", "--cdi-dir", t.TempDir(), "--address", "127.0.0.1:1"}
	code, stdout, stderr := h.run(t, args...)
	if code != 0 || !strings.Contains(stdout, "skip  kubelet        host without Kubernetes: no kubelet directory /nowhere") {
		t.Errorf("exit code %d, %s\n%s", code, stderr, stdout)
	}
	if err := h.driver.Unload(); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr = h.run(t, args...); code != 1 || !strings.Contains(stderr, " checks failed; fix the first one first\n") {
		t.Errorf("without the kernel module: exit code %d, %s", code, stderr)
	}
}

// configCheck runs the command in docs/configuration.md on the configs there, and on an invalid one.
func configCheck(t *testing.T, binary string) {
	const document = "docs/configuration.md"
	var examples []string
	for _, section := range []string{"Sections for some nodes", "Reference"} {
		blocks, err := docs.Blocks(t.Context(), document, section, "yaml")
		if err != nil {
			t.Fatal(err)
		}
		examples = append(examples, blocks...)
	}
	commands, err := docs.Blocks(t.Context(), document, "Validate and apply", "sh")
	if err != nil {
		t.Fatal(err)
	}
	check := func(config string) (string, error) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", commands[0])
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(binary)+":"+os.Getenv("PATH"))
		if err := os.WriteFile(filepath.Join(cmd.Dir, "config.yaml"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, config := range examples {
		if out, err := check(config); err != nil {
			t.Errorf("%s\n%s", out, config)
		}
	}
	out, err := check("kind: Node\nnodes: [{healt: {}}]")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("invalid config: %v", err)
	}
	for _, problem := range []string{`"Node"`, "healt", "want section, names or selector"} {
		if !strings.Contains(out, problem) {
			t.Errorf("%q is not in %s", problem, out)
		}
	}
}

func noCluster(t *testing.T, binary string) {
	code, _, stderr := host{binary: binary}.run(t, "unlabel")
	if code != 1 || !strings.Contains(stderr, "service account") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

func help(t *testing.T, binary string) {
	h := host{binary: binary}
	for _, name := range []string{"serve", "status", "doctor", "unlabel"} {
		if list := h.must(t, "--help"); !strings.Contains(list, "\n  "+name+" ") {
			t.Errorf("%s is not listed in\n%s", name, list)
		}
		text := h.must(t, name, "--help")
		if !strings.Contains(text, "\n  gpucdi "+name+" [flags]\n") {
			t.Errorf("%s --help prints\n%s", name, text)
		}
		if other := h.must(t, "help", name); other != text {
			t.Errorf("help %s prints\n%s\n%s --help\n%s", name, other, name, text)
		}
	}
	if flags := h.must(t, "__complete", "serve", "--kubelet"); !strings.HasPrefix(flags, "--kubelet-dir\t") {
		t.Errorf("completion of serve --kubelet:\n%s", flags)
	}
}

// workerMissing runs gpucdi without gpucdi-nvml in its directory.
func workerMissing(t *testing.T, binary string) {
	h := newHost(t, filepath.Join(t.TempDir(), "gpucdi"), simdriver.GTX1060x2())
	if err := os.Link(binary, h.binary); err != nil {
		t.Fatal(err)
	}
	host{binary: h.binary}.must(t, "version")
	if code, stdout, _ := h.run(t, "doctor", "--kubelet-dir", "/nowhere", "--cdi-dir", t.TempDir()); code != 1 || !strings.Contains(stdout, "gpucdi-nvml: no such file or directory") {
		t.Errorf("doctor: exit code %d, %s", code, stdout)
	}
	for _, command := range []string{"generate", "list", "serve"} {
		code, _, stderr := h.run(t, command)
		if code != 1 || !strings.Contains(stderr, "gpucdi-nvml: no such file or directory; install it in the directory of gpucdi") {
			t.Errorf("%s: exit code %d, %s", command, code, stderr)
		}
	}
}

// terminateEarly sends SIGTERM at points throughout the startup of serve, whose duration is estimated at three times
// that of "gpucdi version".
func terminateEarly(t *testing.T, binary string) {
	const tries = 40
	dir := t.TempDir()
	version := time.Minute
	for i := range tries {
		if i%10 == 0 { // the load of the machine changes
			begin := time.Now()
			host{binary: binary}.must(t, "version")
			version = min(version, time.Since(begin))
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, binary, "serve", "--host-root", dir, "--kubelet-dir", "/nowhere", "--cdi-dir", dir, "--listen", "")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * version * time.Duration(i) / tries)
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		timedOut := ctx.Err() != nil
		cancel()
		if timedOut {
			t.Fatalf("serve did not exit on SIGTERM after %d/%d of a start", i, tries)
		}
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); err != nil && status.Signal() != syscall.SIGTERM {
			t.Fatalf("serve exited with %v, want success or SIGTERM", err)
		}
	}
}

func usageErrors(t *testing.T, binary string) {
	h := host{binary: binary}
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{"list", "--fromat", "json"}, []string{"--fromat", "gpucdi list --help"}},
		{[]string{"nonsense"}, []string{"nonsense"}},
		{[]string{"list", "extra"}, []string{"extra"}},
		{[]string{"list", "--output", "xml"}, []string{"xml", "yaml"}},
		{[]string{"doctor", "-o", "wide"}, []string{"wide", "yaml"}},
		{[]string{"list", "--host-root", "/dev/null"}, []string{"--host-root", "/dev/null is not a directory"}},
		{[]string{"serve", "--host-root", "/nowhere"}, []string{"--host-root", "/nowhere"}},
		{[]string{"config", "check"}, []string{"arg"}},
		{[]string{"status", "-o", "xml"}, []string{"xml", "yaml"}},
		{[]string{"doctor", "--device", "GPU-1"}, []string{"--device", "--launch"}},
		{[]string{"serve", "--listen", "everywhere"}, []string{"everywhere", "host:port"}},
		{[]string{"serve", "--listen", ":65536"}, []string{":65536", "host:port"}},
		{[]string{"generate", "--output", "a", "--check", "b"}, []string{"--output", "--check"}},
		{[]string{"generate", "--output", "/etc/cdi/nvidia.yml"}, []string{"/etc/cdi/nvidia.yml", ".yaml"}},
		{[]string{"generate", "--class", "gds", "--device", "7", "--hook", "/nowhere", "--features", "video", "--names", "uuid", "--format", "toml"},
			[]string{"--device", "--hook", "--features", "--names", "--class gpu", "toml"}},
		{[]string{"generate", "--kind", "nvidia", "--format", "toml", "--names", "colour", "--features", "gaming", "--hook", "./hook", "--class", "tpu"}, []string{"tpu", `"nvidia"`, "toml", "colour", "gaming", `"./hook"`}},
	} {
		code, _, stderr := h.run(t, tc.args...)
		if code != 2 {
			t.Errorf("%v: exit code %d, want 2", tc.args, code)
		}
		for _, want := range tc.want {
			if !strings.Contains(stderr, want) {
				t.Errorf("%v: %q is not in %s", tc.args, want, stderr)
			}
		}
	}
}
