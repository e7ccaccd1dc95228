package host_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/internal/host"
)

func TestFindDriver(t *testing.T) {
	for _, tc := range []struct {
		name       string
		files      []string
		links      map[string]string
		explicit   string
		library    string
		root       string
		libraryDir string
		platform   string
		loaderDirs []string // paths on the node
	}{
		{
			name:  "distribution package",
			files: []string{"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05"},
			links: map[string]string{"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "libnvidia-ml.so.580.95.05"},
			root:  "/", libraryDir: "/usr/lib/x86_64-linux-gnu",
		},
		{
			name:  "lib64",
			files: []string{"usr/lib64/libnvidia-ml.so.1"},
			root:  "/", libraryDir: "/usr/lib64",
		},
		{
			name:  "Debian alternatives",
			files: []string{"usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.580.95.05"},
			links: map[string]string{
				"etc/alternatives/nvidia-ml":                 "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.580.95.05",
				"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "/etc/alternatives/nvidia-ml",
			},
			root: "/", libraryDir: "/usr/lib/x86_64-linux-gnu/nvidia/current",
		},
		{
			name: "driver container takes precedence over packages",
			files: []string{
				"run/nvidia/driver/usr/lib64/libnvidia-ml.so.1",
				"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
			},
			root: "/run/nvidia/driver", libraryDir: "/usr/lib64",
		},
		{
			name: "configured root",
			files: []string{
				"opt/driver/lib64/libnvidia-ml.so.1",
				"usr/lib64/libnvidia-ml.so.1",
			},
			explicit: "/opt/driver", root: "/opt/driver", libraryDir: "/lib64",
		},
		{
			name:    "configured library",
			files:   []string{"opt/driver/odd/libnvidia-ml.so.1", "usr/lib64/libnvidia-ml.so.1"},
			library: "/opt/driver/odd/libnvidia-ml.so.1", root: "/", libraryDir: "/opt/driver/odd",
		},
		{
			name:     "configured root and library",
			files:    []string{"opt/driver/odd/libnvidia-ml.so.1", "opt/driver/usr/lib64/libnvidia-ml.so.1"},
			explicit: "/opt/driver", library: "/opt/driver/odd/libnvidia-ml.so.1",
			root: "/opt/driver", libraryDir: "/odd",
		},
		{
			name:  "WSL2",
			files: []string{"usr/lib/wsl/lib/libnvidia-ml.so.1", "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"},
			root:  "/", libraryDir: "/usr/lib/wsl/lib", platform: "wsl2", loaderDirs: []string{"/usr/lib/wsl/lib"},
		},
		{
			name:     "WSL2 with a configured root and symlinks",
			files:    []string{"mnt/wsl/drivers/libnvidia-ml.so.1"},
			links:    map[string]string{"mnt/usr/lib/wsl/lib": "/wsl/drivers"},
			explicit: "/mnt", root: "/mnt", libraryDir: "/wsl/drivers", platform: "wsl2", loaderDirs: []string{"/mnt/wsl/drivers"},
		},
		{
			name:  "Jetson",
			files: []string{"etc/nv_tegra_release", "usr/lib/x86_64-linux-gnu/nvidia/libnvidia-ml.so.1"},
			root:  "/", libraryDir: "/usr/lib/x86_64-linux-gnu/nvidia", platform: "jetson",
			loaderDirs: []string{"/usr/lib/x86_64-linux-gnu/nvidia", "/usr/lib/x86_64-linux-gnu/tegra"},
		},
		{
			name:  "Jetson with a symlink to the directory",
			files: []string{"etc/nv_tegra_release", "opt/nvidia/l4t/libnvidia-ml.so.1"},
			links: map[string]string{"usr/lib/x86_64-linux-gnu/nvidia": "/opt/nvidia/l4t"},
			root:  "/", libraryDir: "/opt/nvidia/l4t", platform: "jetson",
			loaderDirs: []string{"/opt/nvidia/l4t", "/usr/lib/x86_64-linux-gnu/tegra"},
		},
		{
			name:  "not a Jetson",
			files: []string{"usr/lib/x86_64-linux-gnu/nvidia/libnvidia-ml.so.1", "usr/lib64/libnvidia-ml.so.1"},
			root:  "/", libraryDir: "/usr/lib64",
		},
		{
			name:  "Jetson without NVML",
			files: []string{"etc/nv_tegra_release", "usr/lib/x86_64-linux-gnu/tegra/libcuda.so.1.1"},
			root:  "/", libraryDir: "/usr/lib/x86_64-linux-gnu/tegra", platform: "jetson",
			loaderDirs: []string{"/usr/lib/x86_64-linux-gnu/nvidia", "/usr/lib/x86_64-linux-gnu/tegra"},
		},
		{
			name:  "Jetson without NVML, with a symlink to the directory",
			files: []string{"etc/nv_tegra_release", "opt/tegra/libcuda.so.1.1"},
			links: map[string]string{"usr/lib/x86_64-linux-gnu/tegra": "/opt/tegra"},
			root:  "/", libraryDir: "/opt/tegra", platform: "jetson",
			loaderDirs: []string{"/usr/lib/x86_64-linux-gnu/nvidia", "/opt/tegra"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := tree(t, tc.files, tc.links)
			root, err := host.FindDriver(host.NewRoot(dir), tc.explicit, tc.library)
			if err != nil {
				t.Fatal(err)
			}
			if root.String() != tc.root || root.LibraryDir != tc.libraryDir || root.Platform != tc.platform {
				t.Errorf("found %s in %s of platform %q, want %s in %s of %q", root.LibraryDir, root, root.Platform, tc.libraryDir, tc.root, tc.platform)
			}
			var loaderDirs []string
			for _, inside := range tc.loaderDirs {
				loaderDirs = append(loaderDirs, filepath.Join(dir, inside))
			}
			if got := root.LoaderDirs(); !slices.Equal(got, loaderDirs) {
				t.Errorf("NVML has the loader directories %v, want %v", got, loaderDirs)
			}
		})
	}
}

// A Jetson without NVML is not found below a configured root.
func TestConfiguredRootRequiresNVML(t *testing.T) {
	node := host.NewRoot(tree(t, []string{"etc/nv_tegra_release", "usr/lib/x86_64-linux-gnu/tegra/libcuda.so.1.1"}, nil))
	var missing *host.NoDriverError
	if _, err := host.FindDriver(node, "/", ""); !errors.As(err, &missing) {
		t.Errorf("error %v, want a NoDriverError", err)
	}
}

func TestLibraryMustBeBelowDriverRoot(t *testing.T) {
	node := host.NewRoot(tree(t, []string{"opt/driver/2/libnvidia-ml.so.1", "opt/driver2/libnvidia-ml.so.1"}, nil))
	for _, library := range []string{"/opt/driver2/libnvidia-ml.so.1", "/opt/driver/../driver2/libnvidia-ml.so.1", "/opt/driver"} {
		if _, err := host.FindDriver(node, "/opt/driver", library); err == nil || !strings.Contains(err.Error(), "is not below --driver-root /opt/driver") {
			t.Errorf("%s: error %v", library, err)
		}
	}
}

func TestDevicesDir(t *testing.T) {
	const library, driverDev = "run/nvidia/driver/usr/lib64/libnvidia-ml.so.1", "run/nvidia/driver/dev/nvidiactl"
	for name, tc := range map[string]struct {
		files []string
		own   bool // the driver root's device nodes are used
	}{
		"driver container":                 {[]string{library, driverDev}, true},
		"driver container with host nodes": {[]string{library, driverDev, "dev/nvidiactl"}, false},
		"driver container without nodes":   {[]string{library, "dev/nvidiactl"}, false},
		"no nodes":                         {[]string{library}, false},
		"packages":                         {[]string{"usr/lib64/libnvidia-ml.so.1", "dev/nvidiactl"}, false},
		"packages without nodes":           {[]string{"usr/lib64/libnvidia-ml.so.1"}, false},
	} {
		dir := tree(t, tc.files, nil)
		root, err := host.FindDriver(host.NewRoot(dir), "", "")
		if err != nil {
			t.Fatal(err)
		}
		want := ""
		if tc.own {
			want = filepath.Join(dir, "run/nvidia/driver/dev")
		}
		if got := root.DevicesDir(host.NewRoot(dir)); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestNoDriverErrorListsTriedPaths(t *testing.T) {
	dir := tree(t, nil, map[string]string{"usr/lib64/libnvidia-ml.so.1": "dangling"})
	_, err := host.FindDriver(host.NewRoot(dir), "", "")
	var missing *host.NoDriverError
	if !errors.As(err, &missing) {
		t.Fatalf("error %v, want a NoDriverError", err)
	}
	for _, path := range []string{"/usr/lib64/libnvidia-ml.so.1", "/run/nvidia/driver,"} {
		if !strings.Contains(err.Error(), path) {
			t.Errorf("the error does not contain %s: %v", path, err)
		}
	}
}

func tree(t *testing.T, files []string, links map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	place := func(name string, put func(path string) error) {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), put(path)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range files {
		place(name, func(path string) error { return os.WriteFile(path, nil, 0o600) })
	}
	for name, target := range links {
		place(name, func(path string) error { return os.Symlink(target, path) })
	}
	return dir
}
