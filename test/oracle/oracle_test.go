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

// everything is what NVIDIA's library gives: it does not ask.
const everything = "compute,utility,graphics,video,display"

// difference is what one side has and the other has not, and why: a pattern of
// the container's path, or of its last element alone, or the name of a variable.
type difference struct{ pattern, why string }

const linkTime = "a name for building programs against the driver; what they open is the SONAME"

// left is what theirs has and ours has not.
var left = []difference{
	{"libnvcuvid.so", linkTime},
	{"libnvidia-allocator.so", linkTime},
	{"libnvidia-cfg.so", linkTime},
	{"libnvidia-encode.so", linkTime},
	{"libnvidia-fbc.so", linkTime},
	{"libnvidia-nvvm.so", linkTime},
	{"libnvidia-ptxjitcompiler.so", linkTime},
	{"/usr/bin/nvidia-debugdump", "bug reports are made on the host"},
	{"/usr/bin/nvidia-imex", "a daemon that runs once on a node"},
	{"/usr/bin/nvidia-imex-ctl", "it controls the daemon"},
	{"/usr/bin/nvidia-persistenced", "a daemon of the host: how long the driver stays loaded is the host's business"},
	{"/run/nvidia-persistenced/socket", "it takes commands for how long the driver stays loaded"},
	{"/run/nvidia-fabricmanager/socket", "it takes commands for the whole machine's fabric"},
	{"/tmp/nvidia-mps", "of an MPS daemon: pods mount it from where theirs is"},
	{"/etc/vulkan/icd.d/nvidia_layers.json", "no loader of Vulkan looks for layers there"},
	{"/lib/firmware/nvidia/*/gsp*.bin", "the kernel loads the firmware, on the host"},
	{"libnvidia-gtk3.so.*", "of nvidia-settings, which sets up the host's screens"},
	{"libnvidia-pkcs11*.so.*", "CUDA opens it where confidential computing is on; there ours has it"},
	{"libnvidia-sandboxutils.so.*", "it tells the host's tools what a container needs of the driver"},
	{"libnvidia-wayland-client.so.*", "of nvidia-settings, which sets up the host's screens"},
	{"NVIDIA_CTK_LIBCUDA_DIR", "for scripts that know NVIDIA's toolkit; no program is known that reads it"},
}

// added is what ours has and theirs has not.
var added = []difference{
	{"/dev/dri/by-path/*", "nodes, where theirs makes links, by a hook and as far as the host has them"},
	{"TRITON_LIBCUDA_PATH", "Triton finds libcuda by it, where theirs adds the library to the image's ld.so.cache, by a hook"},
}

func TestNothingIsMissing(t *testing.T) {
	programs := buildPrograms(t)
	used := map[string]bool{}
	for _, profile := range []simdriver.Profile{
		simdriver.H100x8(), simdriver.A100MIG(), simdriver.PCIe4(), simdriver.GTX1060x2(), simdriver.GPUs16(),
	} {
		t.Run(profile.Name, func(t *testing.T) {
			m := startMachine(t, programs, profile)
			m.furnish(t)
			theirs := m.spec(t, "nvcdi", "nvml")
			ours := m.spec(t, "gpucdi", "generate", "--format", "json", "--features", everything)
			compareFiles(t, theirs, ours, used)
			compareDevices(t, theirs, ours, used)
			compareEnvironment(t, theirs, ours, used)
		})
	}
	for _, d := range slices.Concat(left, added) {
		if !used[d.pattern] {
			t.Errorf("%s is listed, and is no difference", d.pattern)
		}
	}
}

// furnish adds what theirs looks for and the simulated driver has not: what comes with other
// versions and packages, and with NVIDIA's daemons.
func (m machine) furnish(t *testing.T) {
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

// The classes besides GPUs, by the name that NVIDIA's library has for them.
func TestNothingIsMissingOfOtherClasses(t *testing.T) {
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

// compareFiles wants each file of theirs to be among ours, and the other way round.
func compareFiles(t *testing.T, theirs, ours *specs.Spec, used map[string]bool) {
	t.Helper()
	wantFiles(t, theirs, ours, used)
	known := map[string]bool{}
	for _, m := range mounts(theirs) {
		known[m.HostPath] = true
	}
	for _, m := range mounts(ours) {
		if !known[m.HostPath] && !isListed(added, m.ContainerPath, used) {
			t.Errorf("ours mounts %s, theirs does not", m.ContainerPath)
		}
	}
}

// wantFiles wants each file of theirs to be among ours, or in a directory of ours, under each
// name that theirs makes it known by.
func wantFiles(t *testing.T, theirs, ours *specs.Spec, used map[string]bool) {
	t.Helper()
	mounted := map[string]bool{} // by their names without directory and with it, and by the files
	for _, m := range mounts(ours) {
		mounted[path.Base(m.ContainerPath)] = true
		mounted[m.ContainerPath] = true
		mounted[m.HostPath] = true
	}
	for _, m := range mounts(theirs) {
		if !mounted[m.HostPath] && !mounted[m.ContainerPath] && !isInside(m, ours) && !isListed(left, m.ContainerPath, used) {
			t.Errorf("theirs mounts %s, ours does not", m.ContainerPath)
		}
	}
	for _, link := range links(theirs) {
		if !mounted[path.Base(link)] && !isListed(left, link, used) {
			t.Errorf("theirs links %s, ours has no file of that name", link)
		}
	}
	t.Logf("%d files and links of theirs, %d mounts of ours", len(mounts(theirs))+len(links(theirs)), len(mounts(ours)))
}

// isInside says whether a directory that ours mounts has the file at the same place.
func isInside(file *specs.Mount, ours *specs.Spec) bool {
	return slices.ContainsFunc(mounts(ours), func(dir *specs.Mount) bool {
		onHost, there := strings.CutPrefix(file.HostPath, dir.HostPath+"/")
		inContainer, here := strings.CutPrefix(file.ContainerPath, dir.ContainerPath+"/")
		return there && here && onHost == inContainer
	})
}

// compareDevices wants each device of theirs to be among ours, with the same
// nodes.
func compareDevices(t *testing.T, theirs, ours *specs.Spec, used map[string]bool) {
	t.Helper()
	has, wanted := nodesOf(ours), nodesOf(theirs)
	if len(wanted) == 0 {
		t.Error("theirs has no device with nodes, so nothing is compared")
	}
	for name, nodes := range wanted {
		for _, node := range has[name] {
			if !slices.Contains(nodes, node) && !isListed(added, node, used) {
				t.Errorf("%s: ours gives %s, theirs gives %v", name, node, nodes)
			}
		}
		if has[name] == nil {
			t.Errorf("theirs has the device %s, ours has %v", name, names(ours))
			continue
		}
		for _, node := range nodes {
			if !slices.Contains(has[name], node) {
				t.Errorf("%s: theirs gives %s, ours gives %v", name, node, has[name])
			}
		}
	}
}

// compareEnvironment wants the variables of both sides to be the same.
func compareEnvironment(t *testing.T, theirs, ours *specs.Spec, used map[string]bool) {
	t.Helper()
	compare := func(has, other *specs.Spec, listed []difference, whose string) {
		for _, variable := range has.ContainerEdits.Env {
			name, _, _ := strings.Cut(variable, "=")
			if !slices.Contains(other.ContainerEdits.Env, variable) && !isListed(listed, name, used) {
				t.Errorf("only %s sets %s", whose, variable)
			}
		}
	}
	compare(theirs, ours, left, "theirs")
	compare(ours, theirs, added, "ours")
}

func mounts(spec *specs.Spec) []*specs.Mount {
	all := slices.Clone(spec.ContainerEdits.Mounts)
	for _, d := range spec.Devices {
		all = append(all, d.ContainerEdits.Mounts...)
	}
	return all
}

// links are those that their hooks make: --link TARGET::PATH.
func links(spec *specs.Spec) (paths []string) {
	hooks := slices.Clone(spec.ContainerEdits.Hooks)
	for _, d := range spec.Devices {
		hooks = append(hooks, d.ContainerEdits.Hooks...)
	}
	for _, hook := range hooks {
		for _, arg := range hook.Args {
			if _, link, is := strings.Cut(arg, "::"); is {
				paths = append(paths, link)
			}
		}
	}
	return paths
}

// nodesOf are the nodes that a container gets by each device, those that all
// share included.
func nodesOf(spec *specs.Spec) map[string][]string {
	nodes := map[string][]string{}
	for _, d := range spec.Devices {
		for _, n := range slices.Concat(spec.ContainerEdits.DeviceNodes, d.ContainerEdits.DeviceNodes) {
			nodes[d.Name] = append(nodes[d.Name], n.Path)
		}
	}
	return nodes
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
		if fits, _ := path.Match(d.pattern, name); fits {
			used[d.pattern] = true
			return true
		}
	}
	return false
}

// machine is a box with a simulated driver and both programs.
type machine struct {
	*box.Box
	programs string
	Driver   *simdriver.Driver // nil: none
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

// startBare is a machine without any driver.
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

// spec is what a program prints.
func (m machine) spec(t *testing.T, program string, args ...string) *specs.Spec {
	t.Helper()
	cmd := m.Command(t.Context(), path.Join(m.programs, program), args...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, said.String())
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
		t.Fatalf("building NVIDIA's library: %v\n%s", err, out)
	}
	return dir
}
