package container_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/test/container"
	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node/images"
)

// victim is a host directory that images try to reach. linked and exchange put the content that they replace at the
// same path in the image, where a runtime finds it if it resolves the symlink within the image.
const victim = "/srv/host"

// newerCUDA is a host file that the hook would use if it were in an image.
const newerCUDA = victim + "/libcuda.so.999.10.01"

// hostCache is the host's ld.so.cache, which no image may reach.
const hostCache = "/etc/ld.so.cache"

// An attack is a row of the table in docs/security.md: an image with content, volumes or variables that no runtime or
// hook may trust.
type attack struct {
	name       string
	advisories string // of NVIDIA's toolkit, for similar attacks
	image      image
	races      string // path that is replaced by a symlink and back during the start
	hangs      bool   // programs in the container hang in their loader
}

var attacks = []attack{
	{name: "`/usr/lib64` is a symlink to a host directory", advisories: "CVE-2024-0132, CVE-2024-0134",
		image: debian(linked("/usr/lib64", victim))},
	{name: "`/usr/lib/x86_64-linux-gnu` is a symlink out of the root through `..`", advisories: "CVE-2024-0132, CVE-2024-0134",
		image: debian(linked("/usr/lib/x86_64-linux-gnu", strings.Repeat("../", 20)+victim))},
	{name: "`/usr/lib64` is a symlink to the host through `/proc/1/root`", advisories: "CVE-2024-0132",
		image: debian(linked("/usr/lib64", "/proc/1/root"+victim))},
	{name: "`/usr/local/cuda/compat` is a symlink to a host directory", advisories: "CVE-2024-0132, CVE-2025-23359",
		image: debian(link("/usr/local/cuda/compat", victim))},
	{name: "`/usr/local/cuda/compat` contains symlinks to host files", advisories: "CVE-2024-0132, CVE-2025-23359",
		image: debian(shell(`mkdir -p usr/local/cuda/compat; cd usr/local/cuda/compat; ln -s "$1" libcuda.so.1; ln -s "/proc/1/root$1" libcuda.so`, newerCUDA))},
	{name: "`/usr/local/cuda/compat` contains hostile names, FIFOs and symlinks next to a newer libcuda", advisories: "CVE-2024-0134, CVE-2025-23359",
		image: debian(shell(`mkdir -p usr/local/cuda/compat; cd usr/local/cuda/compat; cp "$1" .; ln -s "$(basename "$1")" libcuda.so.1
			ln -s "../../../../../../../../$1" libclimbs.so; ln -s "/proc/1/root$1" libleads.so; mkfifo libpipe.so; mkdir libdir.so; touch "$(printf 'lib\n%%n.so')"`, newerCUDA))},
	{name: "`/etc` is a symlink to a host directory", advisories: "CVE-2024-0133, CVE-2024-0134, CVE-2025-23267",
		image: debian(linked("/etc", victim))},
	{name: "`/etc` is a symlink to the host through `/proc/1/root`", advisories: "CVE-2024-0133, CVE-2025-23267",
		image: debian(linked("/etc", "/proc/1/root"+victim))},
	{name: "`/etc/ld.so.cache` is a symlink to a host file", advisories: "CVE-2024-0134, CVE-2025-23267",
		image: debian(link("/etc/ld.so.cache", victim+"/file"))},
	{name: "`/etc/ld.so.cache` is a symlink to the host's through `/proc/1/root`", advisories: "CVE-2024-0134, CVE-2025-23267",
		image: debian(link(hostCache, "/proc/1/root"+hostCache))},
	{name: "`/etc/ld.so.cache` is a host volume", advisories: "CVE-2025-23267",
		image: image{root: images.Debian12, spec: volume(victim+"/file", "/etc/ld.so.cache")}},
	{name: "`/etc/ld.so.conf.d` contains symlinks to host files", advisories: "CVE-2024-0132, CVE-2025-23267",
		image: debian(link("/etc/ld.so.conf.d/000-host.conf", victim+"/file"))},
	{name: "`/etc/ld-musl-x86_64.path` is a symlink to a host file, with musl in the image", advisories: "CVE-2024-0134, CVE-2025-23267",
		image: debian(shell(`touch lib/ld-musl-x86_64.so.1; ln -s "$1" etc/ld-musl-x86_64.path`, victim+"/file"))},
	{name: "`/etc/nvidia` is a symlink to a host directory", advisories: "CVE-2024-0132, CVE-2024-0134",
		image: debian(link("/etc/nvidia", victim))},
	{name: "`/etc/nvidia` is a host volume", advisories: "CVE-2025-23267",
		image: image{root: images.Debian12, spec: volume(victim, "/etc/nvidia")}},
	{name: "`/etc/nvidia` contains a host file in place of the hook's", advisories: "CVE-2025-23267",
		image: image{root: images.Debian12, spec: volume(victim+"/file", "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf")}},
	{name: "`/etc/ld.so.cache` is a FIFO", advisories: "CVE-2025-23267", image: debian(node(unix.S_IFIFO, 0)), hangs: true},
	{name: "`/etc/ld.so.cache` is a device node", advisories: "CVE-2024-0136", image: debian(node(unix.S_IFCHR, unix.Mkdev(1, 5)))},
	{name: "`/etc/ld.so.cache` has a size of 1 TiB", advisories: "CVE-2025-23267", image: debian(cache("glibc-ld.so.cache1.1", 1<<40))},
	{name: "`/etc/ld.so.cache` is not a cache", advisories: "CVE-2025-23267", image: debian(cache("nothing of the kind", 100))},
	{name: "the environment makes the loader load a library of the image", advisories: "CVE-2025-23266",
		image: image{root: images.Debian12, alter: preload, spec: loaderVariables}},
	{name: "the image contains its own `ldconfig`", advisories: "CVE-2024-0135, CVE-2024-0137", image: debian(ownLdconfig)},
	{name: "`/usr/lib64` is replaced by a symlink and back during the start", advisories: "CVE-2024-0132, CVE-2024-0133, CVE-2025-23359",
		image: image{root: images.Debian12}, races: "/usr/lib64"},
	{name: "`/usr/local/cuda/compat` is replaced by a symlink and back during the start", advisories: "CVE-2024-0132, CVE-2025-23359",
		image: debian(compatCUDA("99.0", "999.10.01")), races: "/usr/local/cuda/compat"},
	{name: "`/etc` is replaced by a symlink and back during the start", advisories: "CVE-2024-0133, CVE-2025-23267",
		image: image{root: images.Debian12}, races: "/etc"},
	{name: "`/etc/ld.so.cache` is replaced by a symlink and back during the start", advisories: "CVE-2024-0132, CVE-2025-23267",
		image: image{root: images.Debian12}, races: "/etc/ld.so.cache"},
	{name: "`/etc/nvidia` is replaced by a symlink and back during the start", advisories: "CVE-2024-0132, CVE-2025-23267",
		image: debian(shell("mkdir etc/nvidia")), races: "/etc/nvidia"},
}

// raceStarts is the number of starts in a race, with each runtime, with and without the hook.
const raceStarts = 50

func TestContainment(t *testing.T) {
	t.Parallel()
	m := start(t, container.Config{})
	makeVictim(t, m)
	outcomes := map[string][]string{}
	for _, hook := range []bool{false, true} {
		if hook {
			generateWithHook(t, m)
			generate(t, m, "--hook", hookFile, "--features", "compute,utility,graphics") // all functions of the hook
		} else {
			generate(t, m)
		}
		before := hostFiles(t, m)
		for _, runtime := range runtimes {
			for _, a := range attacks {
				t.Run(fmt.Sprintf("hook %t/%s/%s", hook, path.Base(string(runtime)), a.name), func(t *testing.T) {
					outcomes[a.name] = append(outcomes[a.name], a.run(t, m, runtime))
				})
				if changed := difference(before, hostFiles(t, m)); changed != "" {
					t.Fatalf("%s: %s, hook %t: host files changed:\n%s", a.name, runtime, hook, changed)
				}
			}
		}
	}
	var table strings.Builder
	for _, a := range attacks {
		if len(outcomes[a.name]) < 4 {
			return // some subtests did not run
		}
		fmt.Fprintf(&table, "| %s | %s | %s |\n", a.name, a.advisories, strings.Join(outcomes[a.name], " | "))
	}
	if err := docs.CheckTable(t.Context(), "docs/security.md", table.String()); err != nil {
		t.Error(err)
	}
}

// run starts the image and returns the outcome. A container that starts has its GPUs.
func (a attack) run(t *testing.T, m *container.Machine, runtime container.Runtime) string {
	if a.races != "" {
		a.race(t, m, runtime)
		return "starts or refused"
	}
	v, err := a.image.run(t, m, runtime, 2, 5)
	if err != nil {
		t.Log(err)
		return "refused"
	}
	if !a.hangs {
		v.expect("cuda", []string{"libcuda.so.1"}, "2")
	}
	return "starts"
}

// race starts the image repeatedly while it changes: first without pauses, then with increasing ones, since no
// container with many mounts starts during fast changes. The image must change during the starts, and some starts must
// succeed.
func (a attack) race(t *testing.T, m *container.Machine, runtime container.Runtime) {
	a.image.spec = func(s *specs.Spec) { s.Process.Args = []string{"/bin/true"} }
	bundle, _ := a.image.bundle(t, m, 2, 5)
	var pause, exchanges atomic.Int64
	exchange(t, m, bundle, a.races, &pause, &exchanges)
	starts, started, changes := 0, 0, int64(0)
	for ; starts < raceStarts || started == 0 && starts < 4*raceStarts; starts++ { // a busy machine starts few containers
		pause.Store(int64(time.Duration(max(0, starts-raceStarts/2)) * 2 * time.Millisecond))
		before := exchanges.Load()
		if _, err := m.Output(t.Context(), string(runtime), "run", "--bundle", bundle.Dir, fmt.Sprint("race-", starts)); err == nil {
			started++
		} else {
			t.Log(err)
		}
		changes += exchanges.Load() - before
	}
	t.Logf("%d of %d containers started while %s changed %d times", started, starts, a.races, changes)
	if started == 0 || changes < raceStarts {
		t.Errorf("no race: %d of %d containers started while %s changed %d times", started, starts, a.races, changes)
	}
}

// The comparison of host files detects a hook that reaches the host.
func TestContainmentDetectsHook(t *testing.T) {
	t.Parallel()
	m := start(t, container.Config{})
	makeVictim(t, m)
	generate(t, m)
	for name, command := range map[string]string{
		"follows a symlink": "touch usr/lib64/file",
		"runs code":         "LD_PRELOAD=/proc/self/cwd/preload.so /bin/true",
	} {
		i := debian(func(t *testing.T, m *container.Machine, b *container.Bundle) {
			linked("/usr/lib64", victim)(t, m, b)
			preload(t, m, b)
		})
		i.spec = func(s *specs.Spec) { // runc starts hooks in the container's root directory
			s.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", command}, Env: []string{"LC_ALL=C"}}}}
		}
		before := hostFiles(t, m)
		t.Run(name, func(t *testing.T) {
			if _, err := i.run(t, m, container.Runc, 2, 5); err != nil {
				t.Fatal(err)
			}
		})
		if difference(before, hostFiles(t, m)) == "" {
			t.Errorf("no change of host files by a hook that %s", name)
		}
	}
}

func makeVictim(t *testing.T, m *container.Machine) {
	t.Helper()
	dir := m.Path(victim)
	err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "directory"), 0o755),
		os.WriteFile(filepath.Join(dir, "file"), []byte("of the host\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "directory/file"), []byte("of the host, too\n"), 0o600),
		os.Symlink("file", filepath.Join(dir, "link")),
		os.Symlink(filepath.Base(newerCUDA), filepath.Join(dir, "libcuda.so.1")),
	)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Output(t.Context(), "cp", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", newerCUDA); err != nil {
		t.Fatal(err)
	}
	// Copy these files to the overlay, since other processes may replace the machine's files during the test.
	for _, file := range []string{"/etc/ld.so.cache", "/usr/sbin/ldconfig"} {
		if _, err := m.Output(t.Context(), "sh", "-ec", `cp -p "$1" "$1.own"; mv "$1.own" "$1"`, "sh", file); err != nil {
			t.Fatal(err)
		}
	}
}

// hostFiles describes the host files that images try to reach: the victim, and the upper directories of the box's
// overlays, with all changes to the machine's directories.
func hostFiles(t *testing.T, m *container.Machine) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, top := range []string{m.Path(victim), filepath.Join(m.Dir(), "upper")} {
		err := filepath.WalkDir(top, func(name string, _ fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			files[name], err = describe(name)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"etc/ld.so.cache", "usr/sbin/ldconfig"} {
		if files[filepath.Join(m.Dir(), "upper", file)] == "" {
			t.Fatalf("the comparison does not include the host's %s", file)
		}
	}
	return files
}

func describe(name string) (string, error) {
	var s unix.Stat_t
	if err := unix.Lstat(name, &s); err != nil {
		return "", err
	}
	text := fmt.Sprintf("inode %d, mode %o, owner %d:%d, size %d, written %d, changed %d",
		s.Ino, s.Mode, s.Uid, s.Gid, s.Size, s.Mtim.Nano(), s.Ctim.Nano())
	if s.Mode&syscall.S_IFMT != syscall.S_IFREG || s.Size > 1<<20 {
		return text, nil
	}
	data, err := os.ReadFile(name)
	return fmt.Sprintf("%s, content %x", text, sha256.Sum256(data)), err
}

// difference lists the files that differ.
func difference(before, after map[string]string) string {
	var lines []string
	for name, was := range before {
		if is := after[name]; is != was {
			lines = append(lines, fmt.Sprintf("%s changed from %s to %s", name, was, is))
		}
	}
	for name, is := range after {
		if before[name] == "" {
			lines = append(lines, fmt.Sprintf("%s is new: %s", name, is))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// alter changes the root file system of a bundle before its container starts.
type alter = func(*testing.T, *container.Machine, *container.Bundle)

func debian(alter alter) image { return image{root: images.Debian12, alter: alter} }

// shell returns an alter that runs shell commands in the root file system.
func shell(commands string, args ...string) alter {
	return func(t *testing.T, m *container.Machine, b *container.Bundle) {
		t.Helper()
		root := path.Join(b.Dir, "rootfs")
		if _, err := m.Output(t.Context(), "sh", append([]string{"-ec", "cd " + root + "; " + commands, "sh"}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
}

// link replaces a path in the image with a symlink.
func link(name, target string) alter {
	return shell(`mkdir -p ".$(dirname "$1")"; rm -f ".$1"; ln -s "$2" ".$1"`, name, target)
}

// linked moves a directory of the image to the path of the victim in the image, and replaces it with a symlink.
func linked(dir, target string) alter {
	return shell(`mkdir -p "./$(dirname "$3")"; cp -a ".$1" ".$3"; rm -r ".$1"; ln -s "$2" ".$1"`, dir, target, victim)
}

// node replaces /etc/ld.so.cache with a file of another type.
func node(kind uint32, device uint64) alter {
	return func(t *testing.T, _ *container.Machine, b *container.Bundle) {
		file := b.Path("/etc/ld.so.cache")
		if err := errors.Join(os.Remove(file), unix.Mknod(file, kind|0o644, int(device))); err != nil {
			t.Fatal(err)
		}
	}
}

// cache replaces /etc/ld.so.cache with a file of a given size that begins with text.
func cache(text string, size int64) alter {
	return func(t *testing.T, _ *container.Machine, b *container.Bundle) {
		file := b.Path("/etc/ld.so.cache")
		if err := errors.Join(os.Remove(file), os.WriteFile(file, []byte(text), 0o600), os.Truncate(file, size)); err != nil {
			t.Fatal(err)
		}
	}
}

// volume adds a bind mount, as a hostPath volume does.
func volume(hostPath, containerPath string) func(*specs.Spec) {
	return func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Source: hostPath, Destination: containerPath, Type: "bind", Options: []string{"bind"}})
	}
}

// preload adds a library to the image that creates a file on the host; see src/preload.c.
func preload(t *testing.T, _ *container.Machine, b *container.Bundle) {
	if err := container.Compile(t.Context(), "cc", "preload.c", b.Path("/preload.so"), "-shared", "-fPIC"); err != nil {
		t.Fatal(err)
	}
}

// loaderVariables preloads the library in all processes that have it in their working directory. Some runtimes run
// hooks in the root directory of the container.
func loaderVariables(s *specs.Spec) {
	for _, name := range []string{"LD_PRELOAD", "LD_AUDIT"} {
		s.Process.Env = append(s.Process.Env, name+"=/proc/self/cwd/preload.so")
	}
	s.Process.Env = append(s.Process.Env, "LD_LIBRARY_PATH=/proc/self/cwd")
}

// ownLdconfig replaces ldconfig with a script that creates a file in the victim.
func ownLdconfig(t *testing.T, m *container.Machine, b *container.Bundle) {
	shell(`rm usr/sbin/ldconfig; printf '#!/bin/sh\ntouch `+victim+`/executed\n' > usr/sbin/ldconfig; chmod 755 usr/sbin/ldconfig`)(t, m, b)
}

// exchange exchanges a file or directory of the image with a symlink to the victim until the test ends. pause is the
// time between exchanges in nanoseconds. Each exchange increments count.
func exchange(t *testing.T, m *container.Machine, b *container.Bundle, name string, pause, count *atomic.Int64) {
	t.Helper()
	// overlayfs exchanges only files of its upper layer.
	shell(`mkdir -p ./srv; cp -a ".$1" ".$2"; cp -a ".$1" ".$1.new"; rm -r ".$1"; mv ".$1.new" ".$1"; ln -s "$2" ".$1.link"`, name, victim)(t, m, b)
	file, link := b.Path(name), b.Path(name+".link")
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			switch err := unix.Renameat2(unix.AT_FDCWD, file, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE); {
			case err == nil:
				count.Add(1)
			case !errors.Is(err, unix.EBUSY):
				done <- fmt.Errorf("exchanging %s and a symlink: %w", name, err)
				return
			}
			time.Sleep(time.Duration(pause.Load()))
		}
	}()
	t.Cleanup(func() {
		close(stop)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
