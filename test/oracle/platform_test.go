package oracle

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// On a Jetson, JetPack installs CSV files that list the driver files and device nodes for containers.
func TestJetsonSpec(t *testing.T) {
	const lists = "/etc/nvidia-container-runtime/host-files-for-container.d/"
	libs := "/" + simdriver.LibraryDir + "/"
	m := startBare(t, buildPrograms(t))
	m.nodes(t, "nvhost-ctrl", "nvhost-ctrl-gpu", "nvhost-prof-gpu", "nvmap", "nvgpu/igpu0/ctrl", "fb0")
	m.library(t, libs+"tegra/libcuda.so.1.1", "libcuda.so.1")
	m.library(t, libs+"tegra/libnvrm_gpu.so", "libnvrm_gpu.so")
	m.library(t, libs+"tegra/libnvidia-ptxjitcompiler.so.540.4.0", "libnvidia-ptxjitcompiler.so.1")
	m.library(t, libs+"tegra-egl/libEGL_nvidia.so.0", "libEGL_nvidia.so.0")
	m.link(t, "libcuda.so.1.1", libs+"tegra/libcuda.so")
	m.link(t, "tegra/libcuda.so", libs+"libcuda.so")
	m.link(t, "libnvidia-ptxjitcompiler.so.540.4.0", libs+"tegra/libnvidia-ptxjitcompiler.so.1")
	m.write(t, "/lib/firmware/tegra23x/gpu2cde.bin", "")
	m.write(t, "/etc/nv_tegra_release", "# R36 (release), REVISION: 4.0\n")
	m.write(t, lists+"devices.csv", "dev, /dev/fb0\ndev, /dev/nvhost-ctrl\ndev, /dev/nvhost-ctrl-gpu\ndev, /dev/nvhost-prof-gpu\n"+
		"dev, /dev/nvmap\ndev, /dev/nvgpu/igpu0/ctrl\ndev, /dev/nvhost-nvdla0\n")
	m.write(t, lists+"drivers.csv", "dir, /lib/firmware/tegra23x\n"+
		"lib, "+libs+"tegra/libcuda.so.1.1\nlib, "+libs+"tegra/libnvrm_gpu.so\n"+
		"lib, "+libs+"tegra/libnvidia-ptxjitcompiler.so.540.4.0\nlib, "+libs+"tegra-egl/libEGL_nvidia.so.0\n"+
		"sym, "+libs+"tegra/libcuda.so\nsym, "+libs+"libcuda.so\nsym, "+libs+"tegra/libnvidia-ptxjitcompiler.so.1\n"+
		"lib, "+libs+"tegra/libnvdla_runtime.so\n")

	m.compare(t, "csv", "tegra")
}

func TestWSL2Spec(t *testing.T) {
	const (
		libs  = "/usr/lib/wsl/lib/"
		store = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_0123456789abcdef/"
	)
	m := startBare(t, buildPrograms(t))
	m.nodes(t, "dxg")
	for _, name := range []string{"libcuda.so", "libcuda.so.1", "libcuda.so.1.1", "libnvidia-ml.so.1", "libd3d12.so", "libnvcuvid.so.1", "nvidia-smi"} {
		m.write(t, libs+name, "")
	}
	for _, name := range []string{
		"libcuda.so.1.1", "libcuda_loader.so", "libnvidia-ptxjitcompiler.so.1", "libnvidia-ml.so.1", "libnvidia-ml_loader.so",
		"libnvdxgdmal.so.1", "nvcubins.bin", "nvidia-smi", "libnvidia-nvvm.so.4", "nvoptix.bin", "nvcuda64.dll",
	} {
		m.write(t, store+name, "")
	}
	m.compile(t, libs+"libdxcore.so", "testdata/dxcore.c", "-DSTORE=L\""+path.Clean(store)+"\"")
	m.write(t, "/etc/ld.so.conf.d/ld.wsl.conf", libs+"\n") // as WSL2 does
	if out, err := m.Command(t.Context(), "/sbin/ldconfig").CombinedOutput(); err != nil {
		t.Fatalf("running ldconfig: %v\n%s", err, out)
	}

	m.compare(t, "wsl", "wsl")
}

// compare requires gpucdi's spec of a class to contain everything in nvcdi's spec of a mode. gpucdi's spec may contain
// more files, since gpucdi does not run ldconfig in the container.
func (m machine) compare(t *testing.T, mode, class string) {
	t.Helper()
	theirs, ours := m.spec(t, "nvcdi", mode), m.spec(t, "gpucdi", "generate", "--format", "json", "--class", class)
	requireFiles(t, theirs, ours, map[string]bool{})
	compareDevices(t, theirs, ours, map[string]bool{})
	compareEnvironment(t, theirs, ours, map[string]bool{})
}

// nodes creates device nodes below /dev.
func (m machine) nodes(t *testing.T, names ...string) {
	t.Helper()
	for minor, name := range names {
		m.makeParent(t, "/dev/"+name)
		if err := unix.Mknod(m.Path("/dev/"+name), unix.S_IFCHR|0o666, int(unix.Mkdev(238, uint32(minor)))); err != nil {
			t.Fatal(err)
		}
	}
}

func (m machine) write(t *testing.T, name, content string) {
	t.Helper()
	m.makeParent(t, name)
	if err := os.WriteFile(m.Path(name), []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

func (m machine) link(t *testing.T, target, name string) {
	t.Helper()
	if err := os.Symlink(target, m.Path(name)); err != nil {
		t.Fatal(err)
	}
}

func (m machine) library(t *testing.T, name, soname string) {
	t.Helper()
	m.compile(t, name, "/dev/null", "-nostdlib", "-Wl,-soname,"+soname)
}

func (m machine) compile(t *testing.T, name, source string, flags ...string) {
	t.Helper()
	m.makeParent(t, name)
	out, err := exec.Command("cc", append(flags, "-shared", "-fPIC", "-o", m.Path(name), "-x", "c", source)...).CombinedOutput()
	if err != nil {
		t.Fatalf("compiling %s: %v\n%s", name, err, out)
	}
}

// makeParent creates the directory that contains a file.
func (m machine) makeParent(t *testing.T, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(m.Path(name)), 0o755); err != nil {
		t.Fatal(err)
	}
}
