package cdi

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/test/product"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// leftOut are the entities of NVIDIA's specs that ours do not have, by a part
// of their names.
var leftOut = []struct{ part, why string }{
	{"/firmware/nvidia/", "the node's kernel loads it, no container does"},
	{"/nvidia-persistenced", "a daemon that serves the node's kernel module, from the node"},
	{"/libnvidia-gtk3.so.", "nvidia-settings alone uses it, which is not among the programs"},
	{"/libnvidia-wayland-client.so.", "nvidia-settings alone uses it"},
}

// Whatever NVIDIA's library gives a container of the driver, all features of
// ours together do too.
func TestNothingOfNVIDIAsIsMissing(t *testing.T) {
	gpucdi, err := product.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	oracle := filepath.Join(t.TempDir(), "oracle")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", oracle, ".")
	build.Dir = "oracle"
	run(t, build)
	for _, profile := range profiles() {
		t.Run(profile.Name, func(t *testing.T) {
			root := t.TempDir()
			driver, err := simdriver.Install(root, profile)
			if err != nil {
				t.Fatal(err)
			}
			ours := exec.CommandContext(t.Context(), gpucdi, "generate", "--host-root", root,
				"--features", "compute,utility,graphics,video,display")
			library, err := filepath.EvalSymlinks(filepath.Join(root, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"))
			if err != nil {
				t.Fatal(err)
			}
			// It looks for MIG's capabilities in the /proc of its own machine.
			theirs := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-ec",
				`mount --bind "$1/proc/driver" /proc/driver && exec "$0" "$1" "$2"`, oracle, root, library)
			for _, cmd := range []*exec.Cmd{ours, theirs} {
				cmd.Env = append(os.Environ(), driver.Env("")...)
			}
			have := entities(t, run(t, ours), "")
			want := entities(t, run(t, theirs), root)
			if len(want) < 40 {
				t.Errorf("NVIDIA's library finds only %d entities", len(want))
			}
			for _, entity := range want {
				if !slices.Contains(have, entity) && !excused(entity) {
					t.Errorf("ours lacks %s", entity)
				}
			}
			t.Logf("%d entities of NVIDIA's, %d of ours", len(want), len(have))
		})
	}
}

func excused(entity string) bool {
	for _, l := range leftOut {
		if strings.Contains(entity, l.part) {
			return true
		}
	}
	return false
}

// entities are a spec's devices with their nodes, and the files of the node
// that it mounts, less the root that the spec's writer saw the node in.
func entities(t *testing.T, text, root string) []string {
	t.Helper()
	spec := parse(t, text)
	var all []string
	add := func(device string, edits specs.ContainerEdits) {
		for _, n := range edits.DeviceNodes {
			all = append(all, fmt.Sprintf("node %s %s %d:%d", device, n.Path, n.Major, n.Minor))
		}
		for _, m := range edits.Mounts {
			all = append(all, "file "+strings.TrimPrefix(m.HostPath, root))
		}
	}
	add("of every device", spec.ContainerEdits)
	for _, d := range spec.Devices {
		add(d.Name, d.ContainerEdits)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func parse(t *testing.T, text string) specs.Spec {
	t.Helper()
	var spec specs.Spec
	if err := yaml.Unmarshal([]byte(text), &spec); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return spec
}
