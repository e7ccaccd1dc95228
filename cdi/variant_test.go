package cdi_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	library "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpucdi/gpucdi/cdi"
)

// By default, optional features that the driver lacks are omitted. Selected features are required.
func TestDefaultFeatures(t *testing.T) {
	const video = libDir + "libnvcuvid.so." + driverVersion
	all, without := cdi.Features{cdi.Compute, cdi.Utility, cdi.Video}, cdi.Features{cdi.Compute, cdi.Utility}
	for name, tc := range map[string]struct {
		change  func(n node)
		want    cdi.Features
		invalid bool // selecting all features is an error
	}{
		"complete driver":  {func(node) {}, all, false},
		"no video library": {func(n node) { n.remove(t, video) }, without, true},
		"damaged":          {func(n node) { n.write(t, video, "\x7fELF") }, without, true},
		"other version": {func(n node) {
			n.remove(t, video)
			n.library(t, "libnvcuvid.so.1.2.3", "libnvcuvid.so.1")
		}, without, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			tc.change(n)
			parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, nil)
			if err != nil || !slices.Equal(parts.Features, tc.want) || len(parts.GPUs) != 2 {
				t.Errorf("features %v of %d GPUs, %v; want %v", parts.Features, len(parts.GPUs), err, tc.want)
			}
			if _, err := cdi.Inspect(n.root(), n.driver(t), inventory, all); (err != nil) != tc.invalid {
				t.Errorf("all features selected: got error %v, want an error: %t", err, tc.invalid)
			}
		})
	}
}

// A variant contains the device and one more feature. If variants share a mount or node, runtimes inject it once.
func TestVariants(t *testing.T) {
	n, spec := usableSpec(t)
	dir := t.TempDir()
	if _, err := cdi.AgentFile(dir, n.root()).Put(spec); err != nil {
		t.Fatal(err)
	}
	added := []cdi.Feature{cdi.Graphics, cdi.Display}
	for _, f := range added {
		putVariants(t, n, dir, f)
	}
	plain := inject(t, dir, "GPU-a")
	if nodes := nodePaths(plain); slices.ContainsFunc(nodes, isGraphicsNode) {
		t.Errorf("the plain device has %v", nodes)
	}
	for f, file := range map[cdi.Feature]string{cdi.Graphics: "libEGL_nvidia.so.0", cdi.Display: "nvidia_drv.so"} {
		variant := inject(t, dir, cdi.VariantName("GPU-a", f))
		has := func(s *oci.Spec) bool { return strings.Contains(strings.Join(mountPaths(s), " "), file) }
		if has(plain) || !has(variant) || !slices.ContainsFunc(nodePaths(variant), isGraphicsNode) {
			t.Errorf("%s: mounts %v and nodes %v", f, mountPaths(variant), nodePaths(variant))
		}
		for _, m := range mountPaths(plain) {
			if !slices.Contains(mountPaths(variant), m) {
				t.Errorf("%s: no mount %s", f, m)
			}
		}
	}
	var names []string
	for _, uuid := range []string{"GPU-a", "GPU-b"} {
		for _, f := range added {
			names = append(names, cdi.VariantName(uuid, f))
		}
	}
	parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, cdi.AllFeatures())
	if err != nil {
		t.Fatal(err)
	}
	everything, err := cdi.Build(cdi.AgentKind, inventory, parts, []cdi.NameStrategy{cdi.ByUUID})
	if err != nil {
		t.Fatal(err)
	}
	other := t.TempDir()
	if _, err := cdi.AgentFile(other, n.root()).Put(everything); err != nil {
		t.Fatal(err)
	}
	got, want := inject(t, dir, names...), inject(t, other, "GPU-a", "GPU-b")
	for kind, paths := range map[string]func(*oci.Spec) []string{"mounts": mountPaths, "nodes": nodePaths} {
		if got, want := slices.Sorted(slices.Values(paths(got))), slices.Sorted(slices.Values(paths(want))); !slices.Equal(got, want) {
			t.Errorf("all variants: got %s %v, a spec with all features has %v", kind, got, want)
		}
	}
	if depth := func(p string) int { return strings.Count(p, "/") }; !slices.IsSortedFunc(mountPaths(got), func(a, b string) int { return depth(a) - depth(b) }) {
		t.Errorf("a mount precedes its parent: %v", mountPaths(got))
	}
}

// The agent's specs do not conflict with each other, and each is checked against foreign ones.
func TestConflictsOfVariants(t *testing.T) {
	n, spec := usableSpec(t)
	dir := t.TempDir()
	main, variants := cdi.AgentFile(dir, n.root()), putVariants(t, n, dir, cdi.Graphics)
	if _, err := main.Put(spec); err != nil {
		t.Fatal(err)
	}
	foreign := strings.ReplaceAll(conflicting, "GPU-a", "GPU-a.graphics")
	if err := os.WriteFile(filepath.Join(dir, "foreign.yaml"), []byte(foreign), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := main.Verify(); err != nil {
		t.Errorf("the spec of the devices: %v", err)
	}
	if err := variants.Verify(); err == nil || !variants.Stale() {
		t.Errorf("the spec of the variants: error %v, stale %v; want a conflict", err, variants.Stale())
	}
}

// A GPU whose UUID could be the name of a variant has a fault.
func TestUUIDThatIsAVariantName(t *testing.T) {
	n, inv := newNode(t), *inventory
	inv.GPUs = slices.Clone(inventory.GPUs)
	inv.GPUs[1].UUID = "GPU-a.graphics"
	parts, err := cdi.Inspect(n.root(), n.driver(t), &inv, nil)
	if err != nil || len(parts.GPUs) != 1 || parts.Faults["GPU-a.graphics"].None() {
		t.Errorf("GPUs %v, faults %v, %v; want a fault", parts.GPUs, parts.Faults, err)
	}
}

func putVariants(t *testing.T, n node, dir string, f cdi.Feature) *cdi.File {
	t.Helper()
	parts, err := cdi.Inspect(n.root(), n.driver(t), inventory, cdi.Features{cdi.Compute, cdi.Utility, cdi.Video, f})
	if err != nil {
		t.Fatal(err)
	}
	spec, err := cdi.BuildVariants(f, inventory, parts)
	if err != nil {
		t.Fatal(err)
	}
	file := cdi.VariantFile(f, dir, n.root())
	if _, err := file.Put(spec); err != nil {
		t.Fatal(err)
	}
	return file
}

// inject applies devices of the specs in dir to an empty OCI spec, as runtimes do.
func inject(t *testing.T, dir string, names ...string) *oci.Spec {
	t.Helper()
	cache, err := library.NewCache(library.WithSpecDirs(dir), library.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	qualified := make([]string, len(names))
	for i, name := range names {
		qualified[i] = cdi.AgentKind + "=" + name
	}
	spec := &oci.Spec{}
	if _, err := cache.InjectDevices(spec, qualified...); err != nil {
		t.Fatal(err)
	}
	return spec
}

func mountPaths(s *oci.Spec) (paths []string) {
	for _, m := range s.Mounts {
		paths = append(paths, m.Destination)
	}
	return paths
}

func nodePaths(s *oci.Spec) (paths []string) {
	for _, n := range s.Linux.Devices {
		paths = append(paths, n.Path)
	}
	return paths
}

func isGraphicsNode(path string) bool {
	return strings.HasPrefix(path, "/dev/dri/") || path == "/dev/nvidia-modeset"
}
