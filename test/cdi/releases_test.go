package cdi

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpucdi/gpucdi/test/product"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// releases are the go.mod files of inject: each release of the CDI library that
// brought another version of the specification, and the newest.
var releases = []string{"cdi-0.5.mod", "cdi-0.6.mod", "cdi-0.8.mod", "cdi-1.0.mod", "go.mod"}

// Every release reads the specs of every profile, and gives a container the same.
func TestEveryReleaseReadsTheSpecs(t *testing.T) {
	gpucdi, err := product.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	inject := map[string]string{}
	for _, release := range releases {
		inject[release] = buildInject(t, release)
	}
	for _, profile := range profiles() {
		t.Run(profile.Name, func(t *testing.T) {
			root, specs := t.TempDir(), t.TempDir()
			file := filepath.Join(specs, "nvidia.yaml")
			driver, err := simdriver.Install(root, profile)
			if err != nil {
				t.Fatal(err)
			}
			generate := exec.CommandContext(t.Context(), gpucdi, "generate", "--host-root", root, "--output", file)
			generate.Env = append(os.Environ(), driver.Env("")...)
			run(t, generate)
			for _, device := range []string{"all", names(t, file)[0], names(t, file)[1]} { // one under both its names
				want := ""
				for _, release := range slices.Backward(releases) {
					got := edits(t, run(t, exec.CommandContext(t.Context(), inject[release], specs, "nvidia.com/gpu="+device)))
					if want == "" {
						want = got
					}
					if got != want {
						t.Errorf("%s: %s gives a container\n%s\nwant\n%s", device, release, got, want)
					}
				}
			}
		})
	}
}

// names are the devices of a spec.
func names(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range parse(t, string(text)).Devices {
		names = append(names, d.Name)
	}
	return names
}

func profiles() []simdriver.Profile {
	return []simdriver.Profile{
		simdriver.H100x8(), simdriver.A100MIG(), simdriver.PCIe4(), simdriver.GTX1060x2(), simdriver.GPUs16(),
	}
}

// buildInject builds inject with one release.
func buildInject(t *testing.T, release string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "inject")
	args := []string{"build", "-modfile=" + release, "-o", program}
	if release == "cdi-0.5.mod" {
		args = append(args, "-tags=cdi0.5") // the library had another name
	}
	build := exec.CommandContext(context.WithoutCancel(t.Context()), "go", append(args, ".")...)
	build.Dir = "inject"
	run(t, build)
	return program
}

func run(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, complaints.String())
	}
	return string(out)
}

// edits writes what a container is given as text to compare, in an order of
// its own: the releases differ in theirs.
func edits(t *testing.T, printed string) string {
	t.Helper()
	var spec oci.Spec
	if err := json.Unmarshal([]byte(printed), &spec); err != nil {
		t.Fatal(err)
	}
	var lines []string
	line := func(kind string, edit any) {
		text, err := json.Marshal(edit)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, kind+" "+string(text))
	}
	for _, d := range spec.Linux.Devices {
		line("node", []any{d.Path, d.Type, d.Major, d.Minor})
	}
	for _, m := range spec.Mounts {
		line("mount", []any{m.Source, m.Destination, m.Options})
	}
	for _, e := range spec.Process.Env {
		line("env", e)
	}
	if len(spec.Linux.Devices) < 4 || len(spec.Mounts) < 10 || len(spec.Process.Env) == 0 {
		t.Errorf("a container is given too little: %s", printed)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
