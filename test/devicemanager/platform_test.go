package devicemanager

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// platform is a fixture of WSL2 or a Jetson: the files and device nodes that Windows or JetPack installs.
type platform struct {
	name    string
	profile *simdriver.Profile // of NVML; nil: there is none
	library string             // path of NVML
	faults  []simdriver.Fault  // of NVML's functions that the platform does not support
	nodes   []string           // device nodes, of which the first is required
	files   map[string]string
	libcuda string // path of libcuda

	ids    []string // of the devices
	labels []string // some of the node's labels
	other  []string // prefixes of labels that must not be set
}

// Return values of NVML.
const notSupported = 3

// unsupported returns the faults of functions that NVML of a platform does not support.
func unsupported(functions ...string) (faults []simdriver.Fault) {
	for _, f := range functions {
		faults = append(faults, simdriver.Fault{Func: f, Return: notSupported})
	}
	return faults
}

const jetsonLists = "etc/nvidia-container-runtime/host-files-for-container.d/"

func platforms() []platform {
	libs := simdriver.LibraryDir
	windows, orin := simdriver.GTX1060x2(), simdriver.GTX1060x2()
	orin.Version, orin.GPUs = "540.4.0", orin.GPUs[:1]
	orin.GPUs[0].Name, orin.GPUs[0].Arch, orin.GPUs[0].Major, orin.GPUs[0].CCMinor = "Orin (nvgpu)", 7, 8, 7
	// NVML of a Jetson reports UUIDs without the prefix.
	const orinUUID = "54d0709b-558d-5a59-9c65-0c5fc14a21a4"
	jetson := func(libcuda, release, soc, model string, more string) map[string]string {
		return map[string]string{
			"etc/nv_tegra_release":                       release,
			"proc/meminfo":                               "MemTotal:       15823412 kB\n",
			"sys/firmware/devicetree/base/compatible":    "nvidia,p3767\x00" + soc + "\x00",
			"sys/firmware/devicetree/base/model":         model + "\x00",
			"sys/firmware/devicetree/base/serial-number": "1421620034151\x00",
			jetsonLists + "drivers.csv":                  "lib, /" + libcuda + "\n",
			jetsonLists + "devices.csv":                  "dev, /dev/nvmap\ndev, /dev/nvhost-ctrl-gpu\ndev, /dev/nvhost-nvdla0\n" + more,
		}
	}
	return []platform{
		{
			name: "WSL2", profile: &windows, library: "usr/lib/wsl/lib/libnvidia-ml.so.1",
			faults: unsupported("nvmlDeviceGetMinorNumber", "nvmlDeviceRegisterEvents", "nvmlDeviceGetTopologyCommonAncestor"),
			nodes:  []string{"dev/dxg"}, libcuda: "usr/lib/wsl/lib/libcuda.so.1",
			files:  map[string]string{"usr/lib/wsl/drivers/nv_dispi.inf_amd64_0123456789abcdef/nvcubins.bin": ""},
			ids:    []string{windows.GPUs[0].UUID, windows.GPUs[1].UUID},
			labels: []string{"nvidia.com/gpu.product=NVIDIA-GeForce-GTX-1060-6GB\n", "nvidia.com/gpu.count=2\n", "nvidia.com/gpu.memory=6144\n", "nvidia.com/cuda.driver-version.full=580.95.05\n"},
		},
		{
			name: "Jetson with NVML", profile: &orin, library: libs + "/nvidia/libnvidia-ml.so.1",
			faults: append(unsupported("nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo", "nvmlDeviceGetMemoryInfo", "nvmlDeviceRegisterEvents",
				"nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetArchitecture"),
				simdriver.Fault{Func: "nvmlDeviceGetUUID", Answers: true, Answer: orinUUID}),
			nodes: []string{"dev/nvgpu/igpu0/ctrl", "dev/nvmap"}, libcuda: libs + "/nvidia/libcuda.so.1.1",
			files: jetson(libs+"/nvidia/libcuda.so.1.1", "# R36 (release), REVISION: 4.0, GCID: 37537400\n", "nvidia,tegra234",
				"NVIDIA Jetson AGX Orin Developer Kit", "dev, /dev/nvgpu/igpu0/ctrl\n"),
			ids:    []string{"GPU-" + orinUUID},
			labels: []string{"nvidia.com/gpu.product=Orin-nvgpu\n", "nvidia.com/gpu.family=ampere\n", "nvidia.com/gpu.compute.minor=7\n", "nvidia.com/gpu.memory=15452\n"},
			other:  []string{"nvidia.com/cuda."},
		},
		{
			name:  "Jetson without NVML",
			nodes: []string{"dev/nvhost-ctrl-gpu", "dev/nvmap"}, libcuda: libs + "/tegra/libcuda.so.1.1",
			files: jetson(libs+"/tegra/libcuda.so.1.1", "# R35 (release), REVISION: 4.1, GCID: 33958178\n", "nvidia,tegra194",
				"NVIDIA Jetson AGX Xavier Developer Kit", ""),
			ids:    []string{"GPU-124de610-27a2-8536-8200-a4fd7f2fbaf2"},
			labels: []string{"nvidia.com/gpu.product=Xavier\n", "nvidia.com/gpu.machine=NVIDIA-Jetson-AGX-Xavier-Developer-Kit\n", "nvidia.com/gpu.family=volta\n", "nvidia.com/gpu.memory=15452\n"},
			other:  []string{"nvidia.com/cuda."},
		},
	}
}

// newPlatform returns a node of the platform. Its NVML finds the GPUs of a driver elsewhere, as that of WSL2 finds those of
// Windows: the node has none of the driver's files and device nodes.
func newPlatform(t *testing.T, p platform) *node {
	t.Helper()
	n := newHost(t)
	profile := simdriver.GTX1060x2() // for its libcuda
	if p.profile != nil {
		profile = *p.profile
	}
	elsewhere := filepath.Join(n.dir, "elsewhere")
	driver, err := simdriver.Install(elsewhere, profile)
	if err != nil {
		t.Fatal(err)
	}
	if p.profile != nil {
		n.driver = driver
		for _, f := range p.faults {
			if err := driver.InjectFault(f); err != nil {
				t.Fatal(err)
			}
		}
		n.link(t, driver.LibraryPath(), p.library)
	}
	n.link(t, filepath.Join(elsewhere, simdriver.LibraryDir, "libcuda.so."+profile.Version), p.libcuda)
	for name, content := range p.files {
		if err := os.WriteFile(n.makeParent(t, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range p.nodes {
		n.makeDevice(t, name)
	}
	if err := os.Mkdir(n.nfdDir, 0o755); err != nil {
		t.Fatal(err)
	}
	return n
}

// link makes a hard link in the node's root: the state of the simulated driver is in the inode of its library.
func (n *node) link(t *testing.T, from, name string) {
	t.Helper()
	if err := os.Link(from, n.makeParent(t, name)); err != nil {
		t.Fatal(err)
	}
}

func (n *node) makeParent(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(n.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// makeDevice creates a device node with the numbers of /dev/null.
func (n *node) makeDevice(t *testing.T, name string) {
	t.Helper()
	if err := unix.Mknod(n.makeParent(t, name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatal(err)
	}
}

// A node of each platform advertises its GPUs, gives containers their device nodes and libraries, shares them by
// replicas, and reports a missing device node.
func TestPlatforms(t *testing.T) {
	for _, p := range platforms() {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			n := newPlatform(t, p)
			n.configure(t, "labels: {place: nfd}")
			k := startKubelet(t, n.kubeletDir, 1)
			n.startAgent(t)
			count := int64(len(p.ids))
			k.awaitGPUs(t, count, count)
			n.awaitLabels(t, p.labels...)
			n.requireNoLabels(t, p.other...)

			pod := newPod("first", 1)
			n.requireGPU(t, k, pod, p)
			for _, id := range p.ids {
				if table := n.statusText(t); !strings.Contains(table, id) {
					t.Errorf("the status lacks %s:\n%s", id, table)
				}
			}

			missing := filepath.Join(n.root, p.nodes[0])
			if err := os.Remove(missing); err != nil {
				t.Fatal(err)
			}
			k.awaitGPUs(t, count, 0)
			n.awaitStatus(t, func(nodeStatus) bool { return strings.Contains(n.statusText(t, "-o", "yaml"), "/"+p.nodes[0]) })
			n.awaitMetric(t, fmt.Sprintf(`gpucdi_devices{health="unhealthy",reason="device_node",resource="nvidia.com/gpu"} %d`, count))
			n.makeDevice(t, p.nodes[0])
			k.awaitGPUs(t, count, count)

			k.removePod(pod)
			n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 4}]", "labels: {place: nfd}")
			k.awaitGPUs(t, 4*count, 4*count)
			n.awaitLabels(t, "nvidia.com/gpu.replicas=4\n", "nvidia.com/gpu.sharing-strategy=time-slicing\n")
			for i := range 2 {
				n.requireGPU(t, k, newPod(fmt.Sprint("shared-", i), 1), p)
			}
			n.killAgent(t)
			k.awaitGPUs(t, 4*count, 0)
			n.startAgent(t)
			k.awaitGPUs(t, 4*count, 4*count)
		})
	}
}

// requireGPU admits a pod, and checks that its container gets the device nodes and libcuda of the platform.
func (n *node) requireGPU(t *testing.T, k *kubelet, pod *v1.Pod, p platform) {
	t.Helper()
	if err := k.admit(pod); err != nil {
		t.Fatal(err)
	}
	request, err := k.start(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	nodes := n.injectedNodes(t, request)
	for _, name := range p.nodes {
		if !slices.Contains(nodes, "/"+name) {
			t.Errorf("%s gets the nodes %v, want /%s", pod.Name, nodes, name)
		}
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(n.cdiDir), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	spec := &oci.Spec{}
	if _, err := cache.InjectDevices(spec, request.cdiDevices...); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/" + simdriver.LibraryDir, "/usr/lib64"} {
		if !slices.ContainsFunc(spec.Mounts, func(m oci.Mount) bool {
			return m.Destination == dir+"/libcuda.so.1" && m.Source == "/"+p.libcuda
		}) {
			t.Errorf("%s has no libcuda.so.1 in %s: %v", pod.Name, dir, spec.Mounts)
		}
	}
	_, id, _ := strings.Cut(request.cdiDevices[0], "=")
	if len(request.cdiDevices) != 1 || !slices.Contains(p.ids, id) {
		t.Errorf("%s gets %v, want one of %v", pod.Name, request.cdiDevices, p.ids)
	}
}

// requireNoLabels checks that no label has one of the prefixes.
func (n *node) requireNoLabels(t *testing.T, prefixes ...string) {
	t.Helper()
	text, err := os.ReadFile(n.labelsFile())
	if err != nil {
		t.Fatal(err)
	}
	for _, prefix := range prefixes {
		if strings.Contains("\n"+string(text), "\n"+prefix) {
			t.Errorf("unexpected labels %s:\n%s", prefix, text)
		}
	}
}
