package container_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpucdi/gpucdi/test/container"
	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

var (
	controlNodes = []string{"nvidia-uvm", "nvidia-uvm-tools", "nvidiactl"}
	libraries    = []string{"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"}
)

type testCase struct {
	name    string
	devices []string // CDI names
	gpus    []int    // indexes of the GPUs to expect
	edit    func(*specs.Spec)
}

func cases(gpus []simdriver.GPU) []testCase {
	const kind = "nvidia.com/gpu="
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	byUUID := []string{kind + gpus[2].UUID, kind + gpus[5].UUID}
	return []testCase{
		{"two by uuid", byUUID, []int{2, 5}, nil},
		{"two by index", []string{kind + "0", kind + "7"}, []int{0, 7}, nil},
		{"one by both names", []string{kind + "3", kind + gpus[3].UUID}, []int{3}, nil},
		{"all", []string{kind + "all"}, all, nil},
		{"read-only root", byUUID, []int{2, 5}, readOnly},
		{"non-root user", byUUID, []int{2, 5}, unprivileged},
		// NVIDIA's runtime would inject all GPUs.
		{"none, with NVIDIA_VISIBLE_DEVICES=all", nil, nil, func(s *specs.Spec) {
			s.Process.Env = append(s.Process.Env, "NVIDIA_VISIBLE_DEVICES=all")
		}},
	}
}

func unprivileged(s *specs.Spec) {
	s.Process.User = specs.User{UID: 1000, GID: 1000}
	s.Process.Capabilities = &specs.LinuxCapabilities{}
}

func TestContainerDevices(t *testing.T) {
	t.Parallel()
	m := start(t, container.Config{})
	generate(t, m)
	for _, runtime := range runtimes {
		for _, tc := range cases(m.Driver.State().GPUs) {
			t.Run(path.Base(string(runtime))+"/"+tc.name, func(t *testing.T) { check(t, m, runtime, tc) })
		}
	}
}

// With cgroup v2, a BPF program decides which devices a container may open. crun 1.8 raises a resource limit for it,
// which requires a capability that CI machines lack, so only runc is tested.
func TestContainerDevicesOnCgroupV2(t *testing.T) {
	t.Parallel()
	m := start(t, container.Config{})
	generate(t, m)
	if _, err := m.Output(t.Context(), "mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup"); err != nil {
		t.Fatal(err)
	}
	for _, tc := range cases(m.Driver.State().GPUs) {
		t.Run(tc.name, func(t *testing.T) { check(t, m, container.Runc, tc) })
	}
}

// The driver is in the root of a driver container.
func TestContainerWithDriverRoot(t *testing.T) {
	t.Parallel()
	const root = "/run/nvidia/driver"
	m := start(t, container.Config{DriverRoot: root})
	generate(t, m, "--driver-root", root)
	for _, runtime := range runtimes {
		t.Run(path.Base(string(runtime)), func(t *testing.T) { check(t, m, runtime, cases(m.Driver.State().GPUs)[0]) })
	}
}

// start starts a machine, by default with eight GPUs.
func start(t *testing.T, cfg container.Config) *container.Machine {
	t.Helper()
	cfg.Dir = filepath.Join(t.TempDir(), "box")
	if cfg.Profile.GPUs == nil {
		cfg.Profile = simdriver.H100x8()
	}
	m, err := container.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func generate(t *testing.T, m *container.Machine, flags ...string) {
	t.Helper()
	if err := m.Generate(t.Context(), flags...); err != nil {
		t.Fatal(err)
	}
}

// check runs a container and checks its devices, libraries and mounts.
func check(t *testing.T, m *container.Machine, runtime container.Runtime, tc testCase) {
	spec, err := m.Spec(t.Context(), tc.devices...)
	if err != nil {
		t.Fatal(err)
	}
	if tc.edit != nil {
		tc.edit(spec)
	}
	if spec.Hooks != nil {
		t.Errorf("the OCI spec has hooks: %+v", spec.Hooks)
	}
	v := launch(t, m, runtime, spec)
	// Opening is permitted; ENXIO is the error of a kernel without the driver.
	v.checkNodes(tc.gpus, "ok", "open ENXIO")
	v.checkLibraries(len(tc.gpus))
	v.checkSMI(tc.gpus)
	v.checkOtherGPUs(tc.gpus)
	v.checkMounts()
}

// launch runs a container with the spec. The container must not change the host's mounts.
func launch(t *testing.T, m *container.Machine, runtime container.Runtime, spec *specs.Spec) *view {
	t.Helper()
	bundle, err := m.Bundle(t.Context(), images.Debian12, spec)
	if err != nil {
		t.Fatal(err)
	}
	before := hostMounts(t, m)
	c, err := bundle.Run(t.Context(), runtime)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := errors.Join(c.Remove(ctx), bundle.Remove(ctx)); err != nil {
			t.Error(err)
		}
	})
	if during := hostMounts(t, m); during != before {
		t.Errorf("the container changed the host's mounts to\n%s\nfrom\n%s", during, before)
	}
	return &view{t, c, m.Driver.State().GPUs, spec}
}

// hostMounts returns the mounts in the box, and the machine's mounts that belong to the box or to a driver, except those
// in temporary directories of other tests, which run at the same time.
func hostMounts(t *testing.T, m *container.Machine) string {
	t.Helper()
	inside, err := m.Output(t.Context(), "cat", "/proc/1/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	outside, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var related strings.Builder
	for line := range strings.Lines(string(outside)) {
		if strings.Contains(line, m.Dir()) || strings.Contains(line, "nvidia") && !strings.Contains(line, " "+os.TempDir()+"/Test") {
			related.WriteString(line)
		}
	}
	return inside + related.String()
}

// A view checks a running container from the inside. gpus are all GPUs of the machine.
type view struct {
	t    *testing.T
	c    *container.Container
	gpus []simdriver.GPU
	spec *specs.Spec
}

func (v *view) exec(command ...string) []string {
	v.t.Helper()
	out, err := v.c.Exec(v.t.Context(), command...)
	if err != nil {
		v.t.Fatal(err)
	}
	return slices.Collect(strings.SplitSeq(strings.TrimSpace(out), "\n"))
}

// expect runs the probe, which must report one of want for each subject.
func (v *view) expect(verb string, subjects []string, want ...string) {
	v.t.Helper()
	if len(subjects) == 0 {
		return
	}
	results := v.exec(append([]string{"probe", verb}, subjects...)...)
	if len(results) != len(subjects) {
		v.t.Fatalf("probe %s printed %q for %q", verb, results, subjects)
	}
	for i, line := range results {
		if result, _ := strings.CutPrefix(line, subjects[i]+" "); !slices.Contains(want, result) {
			v.t.Errorf("%s %s, want %s", verb, line, strings.Join(want, " or "))
		}
	}
}

// checkNodes requires exactly the device nodes of the GPUs and, if there is a GPU, controlNodes. opens are the accepted
// results of opening a node.
func (v *view) checkNodes(gpus []int, opens ...string) {
	var want, given []string
	for _, i := range gpus {
		given = append(given, fmt.Sprintf("nvidia%d", v.gpus[i].Minor))
	}
	if len(gpus) > 0 {
		want = append(given, controlNodes...)
	}
	got := slices.DeleteFunc(v.exec("probe", "list", "/dev"), func(name string) bool { return !strings.HasPrefix(name, "nvidia") })
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		v.t.Errorf("the container has the device nodes %v, want %v", got, want)
	}
	for i := range want {
		want[i] = "/dev/" + want[i]
	}
	v.expect("open", want, opens...)
}

// checkLibraries requires the driver's libraries to be loadable, and CUDA to report that number of GPUs. Without GPUs
// the libraries must be missing.
func (v *view) checkLibraries(gpus int) {
	if gpus > 0 {
		v.expect("dlopen", libraries, "ok")
		v.expect("cuda", []string{"libcuda.so.1"}, fmt.Sprint(gpus))
		return
	}
	for _, line := range v.exec(append([]string{"probe", "dlopen"}, libraries...)...) {
		if !strings.Contains(line, "No such file or directory") {
			v.t.Errorf("dlopen without a GPU: %s", line)
		}
	}
}

func (v *view) checkSMI(gpus []int) {
	if len(gpus) == 0 {
		if out, err := v.c.Exec(v.t.Context(), "nvidia-smi", "-L"); err == nil {
			v.t.Errorf("nvidia-smi runs without a GPU: %s", out)
		}
		return
	}
	var want []string
	for i, g := range gpus {
		want = append(want, fmt.Sprintf("GPU %d: %s (UUID: %s)", i, v.gpus[g].Name, v.gpus[g].UUID))
	}
	if got := v.exec("nvidia-smi", "-L"); !slices.Equal(got, want) {
		v.t.Errorf("nvidia-smi -L lists\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// checkOtherGPUs requires that the container cannot open device nodes of other GPUs.
func (v *view) checkOtherGPUs(gpus []int) {
	var others []string
	for i, g := range v.gpus {
		if !slices.Contains(gpus, i) {
			others = append(others, fmt.Sprintf("195:%d", g.Minor))
		}
	}
	if v.spec.Process.User.UID != 0 {
		v.expect("node", others, "mknod EPERM")
		return
	}
	v.expect("node", others, "open EPERM")
}

// checkMounts requires every driver file in the container to be a private, read-only mount with nosuid and nodev.
func (v *view) checkMounts() {
	var files []string
	for _, m := range v.spec.Mounts {
		if strings.HasPrefix(m.Destination, "/usr/") {
			files = append(files, m.Destination)
		}
	}
	want := "open EROFS"
	if v.spec.Process.User.UID != 0 {
		want = "open EACCES"
	}
	v.expect("write", files, want)
	var mounted []string
	for _, line := range v.exec("cat", "/proc/self/mountinfo") {
		// proc_pid_mountinfo(5): id, parent, device, root, mount point, options, tags, "-".
		fields := strings.Fields(line)
		if !slices.Contains(files, fields[4]) {
			continue
		}
		mounted = append(mounted, fields[4])
		options := strings.Split(fields[5], ",")
		for _, option := range []string{"ro", "nosuid", "nodev"} {
			if !slices.Contains(options, option) {
				v.t.Errorf("%s is mounted without %s: %s", fields[4], option, line)
			}
		}
		if fields[6] != "-" {
			v.t.Errorf("%s is not a private mount: %s", fields[4], line)
		}
	}
	slices.Sort(files)
	slices.Sort(mounted)
	if !slices.Equal(mounted, files) {
		v.t.Errorf("mounted files are\n%v\nwant those of the spec\n%v", mounted, files)
	}
}
