package cdi

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/product"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// versions maps versions of the library to build flags of the loader.
var versions = map[string][]string{
	"v0.5.4": {"-tags", "old"}, // containerd 1.7.2, with the former module path
	"v0.6.2": nil,
	"v0.8.1": nil,
	"v1.0.1": nil,
	"v1.1.1": nil,
}

const latest = "v1.1.1"

func TestLibraryVersions(t *testing.T) {
	specs := specDirs(t)
	loaders := map[string]string{}
	for version, flags := range versions {
		loaders[version] = buildLoader(t, version, flags)
	}
	for name, dir := range specs {
		want, err := load(loaders[latest], dir)
		if err != nil || !strings.Contains(want, "=all\n ") {
			t.Fatalf("%s: with %s: %v\n%s", name, latest, err, want)
		}
		if hooks := strings.Contains(want, "\n createContainer /gpucdi-hook "); hooks != strings.HasSuffix(name, "hook") {
			t.Errorf("%s: hooks %t in\n%s", name, hooks, want)
		}
		for version, loader := range loaders {
			t.Run(name+" with "+version, func(t *testing.T) {
				if got, err := load(loader, dir); err != nil || got != want {
					t.Errorf("got\n%s\nwith %s\n%s\nerror %v", got, latest, want, err)
				}
			})
		}
	}
	// Verify that the loader reports rejected specs: older libraries reject a cdiVersion that they do not support.
	t.Run("a newer spec", func(t *testing.T) {
		dir := t.TempDir()
		spec := "cdiVersion: 0.7.0\nkind: example.com/gpu\ndevices: [{name: all, containerEdits: {additionalGids: [1], deviceNodes: [{path: /dev/x, type: c, major: 1, minor: 3}]}}]\n"
		if err := os.WriteFile(filepath.Join(dir, "newer.yaml"), []byte(spec), 0o644); err != nil {
			t.Fatal(err)
		}
		for version, loader := range loaders {
			if _, err := load(loader, dir); (err == nil) != (version > "v0.7") {
				t.Errorf("%s: %v", version, err)
			}
		}
	})
}

// specDirs generates specs with the shipped program and returns their directories by name.
func specDirs(t *testing.T) map[string]string {
	t.Helper()
	binary, err := product.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const allFeatures = "compute,utility,graphics,video,display"
	root := t.TempDir()
	dirs := map[string]string{}
	generate := func(name, file string, env []string, args ...string) {
		t.Helper()
		dirs[name] = filepath.Join(t.TempDir(), "cdi")
		cmd := exec.Command(binary, append([]string{"generate", "--host-root", root, "--output", filepath.Join(dirs[name], file)}, args...)...)
		cmd.Env = append(os.Environ(), env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	for _, profile := range []simdriver.Profile{simdriver.H100x8(), simdriver.A100MIG()} {
		root = t.TempDir()
		driver, err := simdriver.Install(root, profile)
		if err != nil {
			t.Fatal(err)
		}
		generate(profile.Name, "gpu.yaml", driver.Env(""))
		generate(profile.Name+" as JSON", "gpu.json", driver.Env(""), "--kind", "gpucdi.dev/gpu", "--names", "uuid")
		generate(profile.Name+" with all features", "gpu.yaml", driver.Env(""), "--features", allFeatures)
		if err := os.WriteFile(filepath.Join(root, "gpucdi-hook"), nil, 0o755); err != nil {
			t.Fatal(err)
		}
		generate(profile.Name+" with the hook", "gpu.yaml", driver.Env(""), "--hook", "/gpucdi-hook")
	}
	for _, node := range []string{"gdrdrv", "nvidia-fs0"} {
		if err := unix.Mknod(filepath.Join(root, "dev", node), unix.S_IFCHR|0o666, int(unix.Mkdev(238, 0))); err != nil {
			t.Fatal(err)
		}
	}
	generate("gdrcopy", "gdrcopy.yaml", nil, "--class", "gdrcopy")
	generate("gds", "gds.yaml", nil, "--class", "gds")
	return dirs
}

func buildLoader(t *testing.T, version string, flags []string) string {
	t.Helper()
	loader := filepath.Join(t.TempDir(), "load")
	cmd := exec.Command("go", slices.Concat([]string{"build", "-modfile=" + version + ".mod", "-o", loader}, flags, []string{"."})...)
	cmd.Dir = "load"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building with %s: %v\n%s", version, err, out)
	}
	return loader
}

// load returns what each CDI device adds to an OCI spec, sorted, since versions of the library differ in their
// order. On failure it returns the loader's standard error.
func load(loader, dir string) (string, error) {
	cmd := exec.Command(loader, dir)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return stderr.String(), err
	}
	devices := strings.Split(strings.ReplaceAll(string(out), "\n ", "\x00"), "\n")
	for i, device := range devices {
		lines := strings.Split(device, "\x00")
		slices.Sort(lines[1:])
		devices[i] = strings.Join(lines, "\n ")
	}
	slices.Sort(devices)
	return strings.Join(devices, "\n") + "\n", nil
}
