package product_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/test/product"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// layout is the driver layout of a distribution.
type layout struct {
	name  string
	move  [][2]string // directories on Debian, and their paths in this layout
	links [][2]string // symlinks and their targets
	flags []string
	below []string // parent directories of all mount sources
}

const bottlerocket = "/x86_64-bottlerocket-linux-gnu/sys-root/usr"

func layouts() []layout {
	libs := "/" + simdriver.LibraryDir
	const bin, share = "/usr/bin", "/usr/share"
	const store, drivers = "/nix/store/aaa-nvidia-x11-580.95.05", "/nix/store/bbb-graphics-drivers"
	return []layout{
		{name: "Debian and Ubuntu", below: []string{libs, bin, share, "/etc"}},
		{
			name:  "Debian with alternatives",
			move:  [][2]string{{libs, libs + "/nvidia/current"}},
			links: [][2]string{{libs + "/libnvidia-ml.so.1", "/etc/alternatives/nvidia-ml"}, {"/etc/alternatives/nvidia-ml", libs + "/nvidia/current/libnvidia-ml.so.1"}},
			below: []string{libs + "/nvidia/current", bin, share, "/etc"},
		},
		{name: "RHEL and SUSE", move: [][2]string{{libs, "/usr/lib64"}}, below: []string{"/usr/lib64", bin, share, "/etc"}},
		{
			name: "NVIDIA's driver container",
			move: [][2]string{
				{libs, "/run/nvidia/driver" + libs}, {bin, "/run/nvidia/driver" + bin},
				{share, "/run/nvidia/driver" + share}, {"/etc", "/run/nvidia/driver/etc"},
			},
			// Leftovers of an old driver are ignored.
			links: [][2]string{{libs + "/libnvidia-ml.so.1", "libnvidia-ml.so.340.108"}, {libs + "/libnvidia-ml.so.340.108", "/dev/null"}},
			below: []string{"/run/nvidia/driver"},
		},
		{
			name: "GKE on Container-Optimized OS",
			move: [][2]string{
				{libs, "/home/kubernetes/bin/nvidia/lib64"}, {bin, "/home/kubernetes/bin/nvidia/bin"},
				{share + "/vulkan", "/home/kubernetes/bin/nvidia/vulkan"}, {share + "/glvnd", "/home/kubernetes/bin/nvidia/glvnd"},
				{share + "/egl", "/home/kubernetes/bin/nvidia/egl"}, {share + "/nvidia", "/home/kubernetes/bin/nvidia/nvidia"},
				{"/etc/OpenCL", "/home/kubernetes/bin/nvidia/OpenCL"},
			},
			below: []string{"/home/kubernetes/bin/nvidia"},
		},
		{
			name:  "Talos",
			move:  [][2]string{{libs, "/usr/local/glibc/usr/lib"}, {bin, "/usr/local/bin"}, {share, "/usr/local/share"}, {"/etc/OpenCL", "/usr/local/share/OpenCL"}},
			below: []string{"/usr/local"},
		},
		{
			name: "Flatcar",
			move: [][2]string{{libs, "/opt/nvidia/580.95.05/lib64"}, {bin, "/opt/nvidia/580.95.05/bin"}, {share, "/opt/nvidia/580.95.05/usr/share"}},
			links: [][2]string{
				{"/opt/nvidia/current", "/opt/nvidia/580.95.05"},
				{"/opt/bin/nvidia-smi", "/opt/nvidia/current/bin/nvidia-smi"},
			},
			below: []string{"/opt/nvidia/580.95.05", "/etc"},
		},
		{
			name: "Bottlerocket",
			move: [][2]string{
				{libs, bottlerocket + "/lib/nvidia/tesla"}, {bin, bottlerocket + "/libexec/nvidia/tesla/bin"},
				{share, bottlerocket + "/share"}, {"/etc/OpenCL", bottlerocket + "/share/OpenCL"},
			},
			below: []string{bottlerocket},
		},
		{
			name: "NixOS",
			move: [][2]string{{libs, store + "/lib"}, {bin, store + "/bin"}, {share, drivers + "/share"}, {"/etc/OpenCL", drivers + "/etc/OpenCL"}},
			links: [][2]string{
				{"/run/opengl-driver", drivers},
				{drivers + "/lib/libnvidia-ml.so.1", store + "/lib/libnvidia-ml.so.1"},
				{"/run/current-system/sw/bin", store + "/bin"},
			},
			below: []string{store, drivers},
		},
		{
			name:  "custom driver root",
			move:  [][2]string{{libs, "/srv/driver/lib64"}, {bin, "/srv/driver/bin"}, {share, "/srv/driver/usr/share"}, {"/etc", "/srv/driver/etc"}},
			flags: []string{"--driver-root", "/srv/driver"},
			below: []string{"/srv/driver"},
		},
		{
			name:  "custom library path",
			move:  [][2]string{{libs, "/srv/odd/place"}},
			flags: []string{"--nvml-library", "/srv/odd/place/libnvidia-ml.so.1"},
			below: []string{"/srv/odd/place", bin, share, "/etc"},
		},
	}
}

// Containers get the same driver files at the same paths with every layout.
func TestDriverLayouts(t *testing.T) {
	binary, err := product.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, l := range layouts() {
		t.Run(l.name, func(t *testing.T) {
			h := newHost(t, binary, simdriver.GTX1060x2())
			l.make(t, h.root)
			var spec specs.Spec
			args := append([]string{"generate", "--format", "json", "--features", "compute,utility,graphics,video"}, l.flags...)
			if err := json.Unmarshal([]byte(h.must(t, args...)), &spec); err != nil {
				t.Fatal(err)
			}
			var mounted []string
			for _, m := range spec.ContainerEdits.Mounts {
				mounted = append(mounted, m.ContainerPath)
				if !slices.ContainsFunc(l.below, func(dir string) bool { return strings.HasPrefix(m.HostPath, dir+"/") }) {
					t.Errorf("%s: source %s is not below %v", m.ContainerPath, m.HostPath, l.below)
				}
				if info, err := os.Lstat(filepath.Join(h.root, m.HostPath)); err != nil || !info.Mode().IsRegular() {
					t.Errorf("%s is not a regular file: %v", m.HostPath, err)
				}
			}
			if want == nil {
				want = mounted
			}
			if !slices.Equal(mounted, want) {
				t.Errorf("mounts\n%s\nwant those of Debian\n%s", strings.Join(mounted, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// On NixOS, driver files refer to libraries by store path, and programs use a loader in the store. NixOS keeps the
// unmodified programs in origBin.
func TestNixOSStorePaths(t *testing.T) {
	binary, err := product.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t, binary, simdriver.GTX1060x2())
	nixos := layouts()[slices.IndexFunc(layouts(), func(l layout) bool { return l.name == "NixOS" })]
	nixos.make(t, h.root)
	store, drivers := nixos.below[0], nixos.below[1]
	if err := os.Rename(filepath.Join(h.root, store, "bin"), filepath.Join(h.root, store, "origBin")); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		store + "/bin/nvidia-smi":                            "#!/nix/store/ccc-glibc/lib/ld-linux-x86-64.so.2\n",
		drivers + "/etc/OpenCL/vendors/nvidia.icd":           store + "/lib/libnvidia-opencl.so.1\n",
		drivers + "/share/vulkan/icd.d/nvidia_icd.json":      `{"ICD": {"library_path": "` + store + `/lib/libGLX_nvidia.so.0"}}`,
		drivers + "/share/glvnd/egl_vendor.d/10_nvidia.json": `{"ICD": {"library_path": "` + store + `/lib/libEGL_nvidia.so.0"}}`,
	} {
		file = filepath.Join(h.root, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	var spec specs.Spec
	if err := json.Unmarshal([]byte(h.must(t, "generate", "--format", "json", "--features", "compute,utility,graphics")), &spec); err != nil {
		t.Fatal(err)
	}
	const version = ".so.580.95.05"
	want := map[string]string{
		"/usr/bin/nvidia-smi":                store + "/origBin/nvidia-smi",
		store + "/lib/libnvidia-opencl.so.1": store + "/lib/libnvidia-opencl" + version,
		store + "/lib/libGLX_nvidia.so.0":    store + "/lib/libGLX_nvidia" + version,
		store + "/lib/libEGL_nvidia.so.0":    store + "/lib/libEGL_nvidia" + version,
		"/usr/lib64/libGLX_nvidia.so.0":      store + "/lib/libGLX_nvidia" + version,
	}
	for _, m := range spec.ContainerEdits.Mounts {
		if from, listed := want[m.ContainerPath]; listed && m.HostPath != from {
			t.Errorf("%s: source %s, want %s", m.ContainerPath, m.HostPath, from)
		}
		delete(want, m.ContainerPath)
	}
	for at := range want {
		t.Errorf("no mount at %s", at)
	}
}

// make moves the driver files below root from their Debian paths to the paths of the layout.
func (l layout) make(t *testing.T, root string) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, m := range l.move {
		// Via a temporary directory, because a directory may be moved below itself.
		between := filepath.Join(root, "moving", strings.Repeat("x", i+1))
		must(os.MkdirAll(filepath.Dir(between), 0o755))
		must(os.Rename(filepath.Join(root, m[0]), between))
		must(os.MkdirAll(filepath.Dir(filepath.Join(root, m[1])), 0o755))
		must(os.Rename(between, filepath.Join(root, m[1])))
	}
	for _, link := range l.links {
		must(os.MkdirAll(filepath.Dir(filepath.Join(root, link[0])), 0o755))
		must(os.Symlink(link[1], filepath.Join(root, link[0])))
	}
}
