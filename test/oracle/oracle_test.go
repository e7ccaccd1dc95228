package oracle

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/test/box"
	"github.com/gpucdi/gpucdi/test/product"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// allFeatures selects all driver capabilities, as nvcdi always does.
const allFeatures = "compute,utility,graphics,video,display"

// A difference is a file, device node or variable that only one spec contains. pattern matches the container path, its
// last element if the pattern has no slash, or the name of a variable.
type difference struct{ pattern, reason string }

const linkTime = "only for linking programs; at run time they load the SONAME"

// theirsOnly lists what only NVIDIA's spec contains.
var theirsOnly = []difference{
	{"libnvcuvid.so", linkTime},
	{"libnvidia-allocator.so", linkTime},
	{"libnvidia-cfg.so", linkTime},
	{"libnvidia-encode.so", linkTime},
	{"libnvidia-fbc.so", linkTime},
	{"libnvidia-nvvm.so", linkTime},
	{"libnvidia-ptxjitcompiler.so", linkTime},
	{"/usr/bin/nvidia-debugdump", "bug reports are created on the host"},
	{"/usr/bin/nvidia-imex", "a daemon of the node"},
	{"/usr/bin/nvidia-imex-ctl", "controls the IMEX daemon"},
	{"/usr/bin/nvidia-persistenced", "a daemon of the node; controls driver persistence"},
	{"/run/nvidia-persistenced/socket", "controls driver persistence"},
	{"/run/nvidia-fabricmanager/socket", "controls the fabric of the whole node"},
	{"/tmp/nvidia-mps", "the directory of an MPS daemon; pods mount the directory of their own daemon"},
	{"/etc/vulkan/icd.d/nvidia_layers.json", "no Vulkan loader searches for layers there"},
	{"/lib/firmware/nvidia/*/gsp*.bin", "loaded by the kernel, on the host"},
	{"libnvidia-gtk3.so.*", "part of nvidia-settings, which configures the host's displays"},
	{"libnvidia-pkcs11*.so.*", "CUDA loads it only with confidential computing; gpucdi's spec contains it then"},
	{"libnvidia-sandboxutils.so.*", "lists driver files for tools on the host"},
	{"libnvidia-wayland-client.so.*", "part of nvidia-settings, which configures the host's displays"},
	{"NVIDIA_CTK_LIBCUDA_DIR", "for scripts that use NVIDIA's toolkit; no known program reads it"},
}

// oursOnly lists what only gpucdi's spec contains.
var oursOnly = []difference{
	{"/dev/dri/by-path/*", "device nodes; NVIDIA's hook creates symlinks instead, if the host has them"},
	{"TRITON_LIBCUDA_PATH", "Triton finds libcuda with it; NVIDIA's hook adds libcuda to the image's ld.so.cache instead"},
}

func TestGPUSpecs(t *testing.T) {
	programs := buildPrograms(t)
	used := map[string]bool{}
	for _, profile := range []simdriver.Profile{
		simdriver.H100x8(), simdriver.A100MIG(), simdriver.PCIe4(), simdriver.GTX1060x2(), simdriver.GPUs16(),
	} {
		t.Run(profile.Name, func(t *testing.T) {
			m := startMachine(t, programs, profile)
			m.addOptionalFiles(t)
			theirs := m.spec(t, "nvcdi", "nvml")
			ours := m.spec(t, "gpucdi", "generate", "--format", "json", "--features", allFeatures)
			compareFiles(t, theirs, ours, used)
			compareDevices(t, theirs, ours, used)
			compareEnvironment(t, theirs, ours, used)
		})
	}
	for _, d := range slices.Concat(theirsOnly, oursOnly) {
		if !used[d.pattern] {
			t.Errorf("the listed difference %s does not exist", d.pattern)
		}
	}
}

// addOptionalFiles adds files that nvcdi searches for and the simulated driver lacks: files of other driver versions,
// other packages and NVIDIA's daemons.
func (m machine) addOptionalFiles(t *testing.T) {
	t.Helper()
	libs := "/" + simdriver.LibraryDir
	version := m.Driver.State().Version
	m.library(t, libs+"/libnvidia-vulkan-producer.so."+version, "libnvidia-vulkan-producer.so."+version)
	m.library(t, libs+"/libnvidia-nscq.so."+version, "libnvidia-nscq.so.2")
	for _, name := range []string{
		"/usr/bin/nvidia-imex", "/usr/bin/nvidia-imex-ctl",
		"/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json", "/usr/share/vulkan/icd.d/nvidia_layers.json",
		"/usr/share/X11/xorg.conf.d/10-nvidia.conf",
		"/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket", "/tmp/nvidia-mps",
	} {
		m.write(t, name, "{}")
	}
}

// nvcdi has a mode for each class of auxiliary devices, which are devices other than GPUs.
func TestClassSpecs(t *testing.T) {
	m := startMachine(t, buildPrograms(t), simdriver.GTX1060x2())
	m.nodes(t, "nvidia-fs0", "nvidia-fs1", "infiniband/uverbs0", "infiniband/rdma_cm", "gdrdrv", "nvidia-nvswitchctl", "nvidia-nvswitch0",
		"nvidia-caps-imex-channels/channel0", "nvidia-caps-imex-channels/channel1")
	m.write(t, "/run/udev/data/x", "")
	m.write(t, "/etc/cufile.json", "")
	for theirs, ours := range map[string]string{
		"gds": "gds", "mofed": "rdma", "gdrcopy": "gdrcopy", "nvswitch": "nvswitch", "imex": "imex-channel",
	} {
		t.Run(ours, func(t *testing.T) {
			theirs, ours := m.spec(t, "nvcdi", theirs), m.spec(t, "gpucdi", "generate", "--format", "json", "--class", ours)
			compareFiles(t, theirs, ours, map[string]bool{})
			compareDevices(t, theirs, ours, map[string]bool{})
		})
	}
}

// compareFiles requires both specs to contain the same files.
func compareFiles(t *testing.T, theirs, ours *specs.Spec, used map[string]bool) {
	t.Helper()
	requireFiles(t, theirs, ours, used)
	theirFiles := map[string]bool{}
	for _, m := range mounts(theirs) {
		theirFiles[m.HostPath] = true
	}
	for _, m := range mounts(ours) {
		if !theirFiles[m.HostPath] && !isListed(oursOnly, m.ContainerPath, used) {
			t.Errorf("only gpucdi's spec mounts %s", m.ContainerPath)
		}
	}
}

// requireFiles requires ours to mount each file of theirs, by itself or in a directory, and a file with the base name
// of each symlink of theirs.
func requireFiles(t *testing.T, theirs, ours *specs.Spec, used map[string]bool) {
	t.Helper()
	mounted := map[string]bool{} // by base name, container path and host path
	for _, m := range mounts(ours) {
		mounted[path.Base(m.ContainerPath)] = true
		mounted[m.ContainerPath] = true
		mounted[m.HostPath] = true
	}
	for _, m := range mounts(theirs) {
		if !mounted[m.HostPath] && !mounted[m.ContainerPath] && !isInside(m, ours) && !isListed(theirsOnly, m.ContainerPath, used) {
			t.Errorf("only NVIDIA's spec mounts %s", m.ContainerPath)
		}
	}
	for _, link := range links(theirs) {
		if !mounted[path.Base(link)] && !isListed(theirsOnly, link, used) {
			t.Errorf("only NVIDIA's spec links %s", link)
		}
	}
	t.Logf("NVIDIA's spec has %d files and links, gpucdi's has %d mounts", len(mounts(theirs))+len(links(theirs)), len(mounts(ours)))
}

// isInside reports whether a directory that ours mounts contains the file at the same path.
func isInside(file *specs.Mount, ours *specs.Spec) bool {
	return slices.ContainsFunc(mounts(ours), func(dir *specs.Mount) bool {
		onHost, belowHostPath := strings.CutPrefix(file.HostPath, dir.HostPath+"/")
		inContainer, belowContainerPath := strings.CutPrefix(file.ContainerPath, dir.ContainerPath+"/")
		return belowHostPath && belowContainerPath && onHost == inContainer
	})
}

// compareDevices requires both specs to contain the same devices, with the same device nodes.
func compareDevices(t *testing.T, theirs, ours *specs.Spec, used map[string]bool) {
	t.Helper()
	has, wanted := nodesOf(ours), nodesOf(theirs)
	if len(wanted) == 0 {
		t.Error("NVIDIA's spec has no devices to compare")
	}
	for name := range has {
		if wanted[name] == nil {
			t.Errorf("only gpucdi's spec has the device %s, NVIDIA's has %v", name, names(theirs))
		}
	}
	for name, nodes := range wanted {
		for _, node := range has[name] {
			if !slices.Contains(nodes, node) && !isListed(oursOnly, node, used) {
				t.Errorf("%s: only gpucdi's spec has the node %s, NVIDIA's has %v", name, node, nodes)
			}
		}
		if has[name] == nil {
			t.Errorf("only NVIDIA's spec has the device %s, gpucdi's has %v", name, names(ours))
			continue
		}
		for _, node := range nodes {
			if !slices.Contains(has[name], node) {
				t.Errorf("%s: only NVIDIA's spec has the node %s, gpucdi's has %v", name, node, has[name])
			}
		}
	}
}

// compareEnvironment requires both specs to set the same variables with each device.
func compareEnvironment(t *testing.T, theirs, ours *specs.Spec, used map[string]bool) {
	t.Helper()
	compare := func(has, other *specs.Spec, listed []difference, name string) {
		others := environmentOf(other)
		for device, variables := range environmentOf(has) {
			for _, variable := range variables {
				key, _, _ := strings.Cut(variable, "=")
				if !slices.Contains(others[device], variable) && !isListed(listed, key, used) {
					t.Errorf("%s: only %s spec sets %s", device, name, variable)
				}
			}
		}
	}
	compare(theirs, ours, theirsOnly, "NVIDIA's")
	compare(ours, theirs, oursOnly, "gpucdi's")
}

func mounts(spec *specs.Spec) []*specs.Mount {
	all := slices.Clone(spec.ContainerEdits.Mounts)
	for _, d := range spec.Devices {
		all = append(all, d.ContainerEdits.Mounts...)
	}
	return all
}

// links returns the symlinks that hooks create, from their arguments --link TARGET::PATH.
func links(spec *specs.Spec) (paths []string) {
	hooks := slices.Clone(spec.ContainerEdits.Hooks)
	for _, d := range spec.Devices {
		hooks = append(hooks, d.ContainerEdits.Hooks...)
	}
	for _, hook := range hooks {
		for _, arg := range hook.Args {
			if _, link, ok := strings.Cut(arg, "::"); ok {
				paths = append(paths, link)
			}
		}
	}
	return paths
}

// nodesOf returns the device nodes that a container gets with each device, including the nodes of the edits for all
// devices.
func nodesOf(spec *specs.Spec) map[string][]string {
	nodes := map[string][]string{}
	for _, d := range spec.Devices {
		for _, n := range slices.Concat(spec.ContainerEdits.DeviceNodes, d.ContainerEdits.DeviceNodes) {
			nodes[d.Name] = append(nodes[d.Name], n.Path)
		}
	}
	return nodes
}

// environmentOf returns the variables that a container gets with each device, including those of the edits for all
// devices.
func environmentOf(spec *specs.Spec) map[string][]string {
	variables := map[string][]string{}
	for _, d := range spec.Devices {
		variables[d.Name] = slices.Concat(spec.ContainerEdits.Env, d.ContainerEdits.Env)
	}
	return variables
}

func names(spec *specs.Spec) (all []string) {
	for _, d := range spec.Devices {
		all = append(all, d.Name)
	}
	return all
}

func isListed(differences []difference, containerPath string, used map[string]bool) bool {
	for _, d := range differences {
		name := containerPath
		if !strings.Contains(d.pattern, "/") {
			name = path.Base(containerPath)
		}
		if match, _ := path.Match(d.pattern, name); match {
			used[d.pattern] = true
			return true
		}
	}
	return false
}

// machine is a box with gpucdi and nvcdi, and with a simulated driver unless Driver is nil.
type machine struct {
	*box.Box
	programs string
	Driver   *simdriver.Driver
}

func startMachine(t *testing.T, programs string, profile simdriver.Profile) machine {
	t.Helper()
	m := startBare(t, programs)
	driver, err := simdriver.Install(m.Path("/"), profile)
	if err != nil {
		t.Fatal(err)
	}
	m.Driver = driver
	return m
}

// startBare starts a machine without a driver.
func startBare(t *testing.T, programs string) machine {
	t.Helper()
	b, err := box.Start(t.Context(), box.Config{
		Dir: filepath.Join(t.TempDir(), "box"), Simulated: true, Binds: map[string]string{programs: "/opt/programs"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return machine{Box: b, programs: "/opt/programs"}
}

// spec returns the CDI spec that a program prints.
func (m machine) spec(t *testing.T, program string, args ...string) *specs.Spec {
	t.Helper()
	cmd := m.Command(t.Context(), path.Join(m.programs, program), args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, stderr.String())
	}
	spec := new(specs.Spec)
	if err := json.Unmarshal(out, spec); err != nil {
		t.Fatal(fmt.Errorf("reading the spec of %s: %w", program, err))
	}
	return spec
}

func buildPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := product.Build(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "nvcdi"), ".")
	cmd.Dir = "nvcdi"
	cmd.Env = append(os.Environ(), "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building nvcdi: %v\n%s", err, out)
	}
	return dir
}
