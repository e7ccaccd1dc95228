package container_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpucdi/gpucdi/test/container"
	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node/images"
)

// The libcuda.so.1 that programs of an image load.
const (
	driverCUDA   = "the driver's"
	inaccessible = "the driver's, without a GPU"
	imageCUDA    = "the image's own"
	noCUDA       = "none"
	refused      = "does not start"
)

// An image is a root file system with changes. In matrix, it is a row of the table of loaders and runtimes in
// docs/images.md.
type image struct {
	name  string
	root  images.Root
	spec  func(*specs.Spec)
	alter func(*testing.T, *container.Machine, *container.Bundle)
	finds string // with runc, without the hook
	crun  string // with crun, if different
	hook  string // with the hook, if different
	both  string // with crun and the hook, if different
	why   string
}

// found returns the libcuda to expect with a runtime, with or without the hook.
func (i image) found(runtime container.Runtime, hook bool) string {
	found := i.finds
	if hook {
		found = cmp.Or(i.hook, found)
	}
	if runtime == container.Crun {
		found = cmp.Or(i.crun, found)
	}
	if hook && runtime == container.Crun {
		found = cmp.Or(i.both, found)
	}
	return found
}

var matrix = []image{
	{name: "Debian 12", root: images.Debian12, finds: driverCUDA,
		why: "glibc's built-in directory `/usr/lib/x86_64-linux-gnu`"},
	{name: "Debian 13", root: images.Debian13, finds: driverCUDA,
		why: "the same, with glibc 2.41"},
	{name: "RHEL, SUSE and derivatives", root: images.Lib64, finds: driverCUDA,
		why: "glibc's built-in directory `/usr/lib64`"},
	{name: "distroless: no shell, no `ldconfig`", root: images.Distroless, finds: driverCUDA,
		why: "mounts require no program in the image"},
	{name: "Debian 12, root read-only", root: images.Debian12, finds: driverCUDA,
		spec: readOnly,
		why:  "the runtime creates the mount points before the root becomes read-only"},
	{name: "Debian 12, not root", root: images.Debian12, finds: driverCUDA, spec: unprivileged,
		why: "the driver's device nodes and files are accessible to all users"},
	{name: "Debian 12, user namespace", root: images.Debian12, finds: driverCUDA,
		spec: mapUsers, alter: chownRoot, crun: inaccessible,
		why: "runc mounts the host's device nodes, with their permissions; crun 1.8 of Debian 12 creates nodes with mode 0"},
	{name: "Debian 12 with a libcuda in its own `ld.so.cache`", root: images.Debian12, finds: imageCUDA, hook: driverCUDA, alter: staleCUDA,
		why: "glibc searches the cache before its built-in directories"},
	{name: "the same, root read-only", root: images.Debian12, finds: imageCUDA, hook: driverCUDA, both: refused,
		alter: staleCUDA, spec: readOnly,
		why: "crun makes the root read-only before it runs the hook; the hook then fails because the container would load another libcuda"},
	{name: "Debian 12 with a CUDA that is newer than the driver, and its `compat` libraries", root: images.Debian12, finds: driverCUDA, hook: imageCUDA,
		alter: compatCUDA("99.0", "999.10.01"),
		why:   "no loader searches `/usr/local/cuda/compat`; the hook does"},
	{name: "the same with an older CUDA", root: images.Debian12, finds: driverCUDA,
		alter: compatCUDA("9.0", "384.81"),
		why:   "CUDA works with any newer driver"},
	// Debian's musl has a list of directories, which is removed because Alpine's musl has none.
	{name: "musl", root: images.Musl, finds: noCUDA, hook: driverCUDA, alter: shell("rm etc/ld-musl-x86_64.path"),
		why: "musl searches the directories only if the hook adds them; a real driver also needs glibc"},
	{name: "musl, root read-only", root: images.Musl, finds: noCUDA, hook: driverCUDA, both: noCUDA,
		alter: shell("rm etc/ld-musl-x86_64.path"), spec: readOnly,
		why: "crun makes the root read-only before it runs the hook; the hook then changes nothing because no other libcuda would be loaded"},
}

func TestImages(t *testing.T) {
	t.Parallel()
	m := start(t, container.Config{Images: []images.Root{images.Debian13, images.Lib64, images.Distroless, images.Musl}})
	mountProcAndSys(t, m, "/")
	for _, hook := range []bool{false, true} {
		if hook {
			generateWithHook(t, m)
		} else {
			generate(t, m)
		}
		for _, runtime := range runtimes {
			for _, image := range matrix {
				name := fmt.Sprintf("hook %t/%s/%s", hook, path.Base(string(runtime)), image.name)
				t.Run(name, func(t *testing.T) { image.check(t, m, runtime, hook) })
			}
		}
	}
	var table strings.Builder
	for _, i := range matrix {
		fmt.Fprintf(&table, "| %s | %s | %s | %s | %s | %s |\n", i.name, i.found(container.Runc, false), i.found(container.Crun, false),
			i.found(container.Runc, true), i.found(container.Crun, true), i.why)
	}
	if err := docs.CheckTable(t.Context(), "docs/images.md", table.String()); err != nil {
		t.Error(err)
	}
}

// hookFile is the path of the hook in docs/images.md.
const hookFile = "/opt/gpucdi/gpucdi-hook"

// generateWithHook runs the commands in docs/images.md, with the path of the programs in the box.
func generateWithHook(t *testing.T, m *container.Machine) {
	t.Helper()
	blocks, err := docs.Blocks(t.Context(), "docs/images.md", "The hook", "sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range blocks {
		block = strings.ReplaceAll(block, " bin/", " /usr/local/bin/")
		if _, err := m.Output(t.Context(), "sh", "-ec", block); err != nil {
			t.Fatal(err)
		}
	}
}

var runtimes = []container.Runtime{container.Runc, container.Crun}

func (i image) check(t *testing.T, m *container.Machine, runtime container.Runtime, hook bool) {
	v, err := i.run(t, m, runtime, 2, 5)
	if i.found(runtime, hook) == refused {
		if err == nil || !strings.Contains(err.Error(), path.Base(hookFile)) {
			t.Errorf("starting the container returned %v, want an error of the hook", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	opens := []string{"ok", "open ENXIO"} // ENXIO: a kernel without the driver
	var cuda, nvml string
	switch i.found(runtime, hook) {
	case driverCUDA:
		cuda, nvml = "2", "2"
	case inaccessible:
		opens = []string{"open EACCES"}
		cuda, nvml = "error 999", "error 999" // CUDA_ERROR_UNKNOWN and NVML_ERROR_UNKNOWN
	case imageCUDA:
		cuda, nvml = "error 34", "2" // see src/stale.c
	case noCUDA:
		cuda, nvml = notFound("libcuda.so.1"), notFound("libnvidia-ml.so.1")
	}
	v.checkNodes([]int{2, 5}, opens...)
	v.expect("cuda", []string{"libcuda.so.1"}, cuda)
	if found := i.found(runtime, hook); found != noCUDA && (hook || found != imageCUDA) {
		v.expect("cuda", []string{"libcuda.so"}, cuda)
	}
	v.expect("nvml", []string{"libnvidia-ml.so.1"}, nvml)
	if i.root == images.Debian12 || i.root == images.Debian13 { // the others have no ldconfig
		written := hook && (runtime == container.Runc || !v.spec.Root.Readonly)
		cached := written && i.found(runtime, hook) != imageCUDA
		v.checkCache(map[string]bool{"libcuda.so.1": cached, "libcuda.so": cached, "libnvidia-ml.so.1": written})
	}
}

// checkCache requires ldconfig -p to list exactly the driver's libraries that are true in want, and still the image's
// libraries.
func (v *view) checkCache(want map[string]bool) {
	v.t.Helper()
	libraries := map[string]string{}
	for _, line := range v.exec("ldconfig", "-p") {
		if name, file, found := strings.Cut(strings.TrimSpace(line), " (libc6,x86-64) => "); found {
			libraries[name] = file
		}
	}
	const dir = "/usr/lib/x86_64-linux-gnu/"
	for name, want := range want {
		if got := libraries[name] == dir+name; got != want {
			v.t.Errorf("ldconfig -p lists %s at %q, want the driver's: %t", name, libraries[name], want)
		}
	}
	if libraries["libc.so.6"] == "" {
		v.t.Errorf("ldconfig -p does not list the image's libraries: %v", libraries)
	}
}

// notFound returns the error of musl's dlopen for a missing library.
func notFound(library string) string {
	return "Error loading shared library " + library + ": No such file or directory"
}

func readOnly(s *specs.Spec) { s.Root.Readonly = true }

// run starts a container of the image with GPUs by index. The error is the runtime's.
func (i image) run(t *testing.T, m *container.Machine, runtime container.Runtime, gpus ...int) (*view, error) {
	t.Helper()
	bundle, spec := i.bundle(t, m, gpus...)
	c, err := bundle.Run(t.Context(), runtime)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := c.Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return &view{t, c, m.Driver.State().GPUs, spec}, nil
}

// bundle creates a bundle of the image with GPUs by index.
func (i image) bundle(t *testing.T, m *container.Machine, gpus ...int) (*container.Bundle, *specs.Spec) {
	t.Helper()
	all := m.Driver.State().GPUs
	var devices []string
	for _, gpu := range gpus {
		devices = append(devices, "nvidia.com/gpu="+all[gpu].UUID)
	}
	spec, err := m.Spec(t.Context(), devices...)
	if err != nil {
		t.Fatal(err)
	}
	if i.spec != nil {
		i.spec(spec)
	}
	bundle, err := m.Bundle(t.Context(), i.root, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bundle.Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if i.alter != nil {
		i.alter(t, m, bundle)
	}
	return bundle, spec
}

// The user namespace of a pod with hostUsers: false.
const (
	firstUser = 100000
	allUsers  = 65536
)

func mapUsers(s *specs.Spec) {
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	s.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: firstUser, Size: allUsers}}
	s.Linux.GIDMappings = s.Linux.UIDMappings
}

// chownRoot makes the container's root user the owner of the root file system.
func chownRoot(t *testing.T, m *container.Machine, b *container.Bundle) {
	root := path.Join(b.Dir, "rootfs")
	if _, err := m.Output(t.Context(), "chown", "--recursive", "--no-dereference", fmt.Sprintf("%d:%[1]d", firstUser), root); err != nil {
		t.Fatal(err)
	}
}

// mountProcAndSys mounts procfs and sysfs a second time, below root. In a user namespace, the kernel permits mounting
// them only if a fully visible mount exists, and files of the simulated driver cover parts of /proc and /sys.
func mountProcAndSys(t *testing.T, m *container.Machine, root string) {
	t.Helper()
	for _, kind := range []string{"proc", "sysfs"} {
		at := path.Join(root, "mnt", kind)
		if err := os.MkdirAll(m.Path(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Output(t.Context(), "mount", "-t", kind, kind, at); err != nil {
			t.Fatal(err)
		}
	}
}

// staleCUDA adds a libcuda to an image and to its ld.so.cache.
func staleCUDA(t *testing.T, _ *container.Machine, b *container.Bundle) {
	const dir = "/opt/cuda"
	addCUDA(t, b, path.Join(dir, "libcuda.so.1"))
	if err := os.WriteFile(b.Path("/etc/ld.so.conf.d/000-cuda.conf"), []byte(dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "ldconfig", "-r", filepath.Clean(b.Path("/"))).CombinedOutput(); err != nil {
		t.Fatalf("running ldconfig: %v\n%s", err, out)
	}
}

// compatCUDA adds the forward-compatibility libraries of a CUDA version to an image, as NVIDIA's packages do.
func compatCUDA(cuda, driver string) alter {
	return func(t *testing.T, m *container.Machine, b *container.Bundle) {
		dir := "/usr/local/cuda-" + cuda + "/compat"
		addCUDA(t, b, path.Join(dir, "libcuda.so."+driver))
		shell(`ln -s "cuda-$1" usr/local/cuda; ln -s "libcuda.so.$2" ".$3/libcuda.so.1"; ln -s libcuda.so.1 ".$3/libcuda.so"`, cuda, driver, dir)(t, m, b)
	}
}

// addCUDA adds a libcuda to an image; see src/stale.c.
func addCUDA(t *testing.T, b *container.Bundle, file string) {
	t.Helper()
	if err := os.MkdirAll(path.Dir(b.Path(file)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := container.Compile(t.Context(), "cc", "stale.c", b.Path(file), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"); err != nil {
		t.Fatal(err)
	}
}
