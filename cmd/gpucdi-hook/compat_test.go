package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/ldcache"
)

// tree maps paths in a root file system to a symlink target after "->", one of the libraries below, or file content.
type tree map[string]string

// The libraries of a tree, by the description of their ELF note (see noteSection); noNote has none.
const (
	noNote        = "none"
	validNote     = `{"Format": 1, "CUDA Version": "13.1", "Driver": [535, 550, 580, 590], "Device": [1, 2]}`
	malformedNote = `{"Driver": "all"}`
)

// object builds a libcuda whose ELF note has the given description. For noNote, the libcuda has no note.
func object(t testing.TB, description string) []byte {
	t.Helper()
	note := ""
	if description != noNote {
		note = fmt.Sprintf(".section .note.cuda.fwd_compatibility,\"a\",@note\n.long 19, %d, 1\n.asciz \"NVIDIA Corporation\"\n.balign 4\n.ascii %q\n",
			len(description), description)
	}
	file := filepath.Join(t.TempDir(), "libcuda.so")
	cc := exec.Command("cc", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-x", "assembler", "-", "-o", file)
	cc.Stdin = strings.NewReader(note)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("building libcuda: %v\n%s", err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (tr tree) write(t *testing.T, root string) {
	t.Helper()
	for name, text := range tr {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if target, ok := strings.CutPrefix(text, "->"); ok {
			if err := os.Symlink(target, file); err != nil {
				t.Fatal(err)
			}
			continue
		}
		data := []byte(text)
		if slices.Contains([]string{noNote, validNote, malformedNote}, text) {
			data = object(t, text)
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// release returns the files of NVIDIA's package cuda-compat for a CUDA release. libcuda is the value of its libcuda in
// the tree.
func release(dir, version, libcuda string) tree {
	dir = "usr/local/" + dir + "/compat/"
	return tree{
		dir + "libcuda.so." + version:                  libcuda,
		dir + "libcuda.so.1":                           "->libcuda.so." + version,
		dir + "libcuda.so":                             "->libcuda.so.1",
		dir + "libnvidia-ptxjitcompiler.so.1":          "->libnvidia-ptxjitcompiler.so." + version,
		dir + "libnvidia-ptxjitcompiler.so." + version: noNote,
	}
}

func (tr tree) with(others ...tree) tree {
	for _, other := range others {
		for name, text := range other {
			tr[name] = text
		}
	}
	return tr
}

// The driver version is 580.95.05.
func TestCompatLibraries(t *testing.T) {
	const releaseDir = "usr/local/cuda-13.1"
	for _, tc := range []struct {
		name string
		tree tree
		want string // the selected release
	}{
		{"no release", tree{}, ""},
		{"newer branch", release("cuda-13.1", "590.44.01", noNote), "cuda-13.1"},
		{"same branch", release("cuda-13.0", "580.99.01", noNote), ""},
		{"older branch", release("cuda-12.9", "575.57.08", noNote), ""},
		{"branch greater only as text", release("cuda-8.0", "99.1", noNote), ""},
		{"supported branch", release("cuda-13.1", "590.44.01", validNote), "cuda-13.1"},
		{"supported branch, newer", release("cuda-13.0", "580.105.08", validNote), "cuda-13.0"},
		{"supported branch, older", release("cuda-13.0", "580.82.07", validNote), ""},
		{"malformed note", release("cuda-13.1", "590.44.01", malformedNote), ""},
		{"not a library", release("cuda-13.1", "590.44.01", "text"), ""},
		{"symlink to a release", release("cuda-13.1", "590.44.01", noNote).with(tree{"usr/local/cuda": "->/etc/alternatives/cuda", "etc/alternatives/cuda": "->/usr/local/cuda-13.1"}), "cuda"},
		{"several releases", release("cuda-12.9", "575.57.08", noNote).with(release("cuda-13.2", "595.10", noNote), release("cuda-13.1", "590.44.01", noNote)), "cuda-13.2"},
		{"newest release unsupported", release("cuda-13.1", "590.44.01", noNote).with(release("cuda-14.0", "610.1", malformedNote)), "cuda-13.1"},
		{"other directory", release("cudnn-13.1", "590.44.01", noNote), ""},
		{"no version", tree{releaseDir + "/compat/libcuda.so.1": noNote}, ""},
		{"invalid version", release("cuda-13.1", "590.4x", noNote), ""},
		{"version with sign", release("cuda-13.1", "+590.44", noNote), ""},
		{"version with empty number", release("cuda-13.1", "590..44", noNote), ""},
		{"version out of range", release("cuda-13.1", "99999999999999999999.44", noNote), ""},
		{"symlink to other name", release("cuda-13.1", "1", noNote).with(tree{releaseDir + "/compat/libcuda.so.1": "->590.44.01", releaseDir + "/compat/590.44.01": noNote}), ""},
		{"symlink loop", tree{releaseDir + "/compat/libcuda.so.1": "->libcuda.so.1"}, ""},
		{"dangling symlink", tree{releaseDir + "/compat/libcuda.so.1": "->libcuda.so.590.44.01"}, ""},
		{"file instead of compat", tree{releaseDir + "/compat": "text"}, ""},
		{"file instead of /usr/local", tree{"usr/local": "text"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			tc.tree.write(t, dir)
			checkLibraries(t, dir, tc.want)
		})
	}
}

// checkLibraries checks that compatLibraries returns all libraries of a release by all names; none if release is empty.
func checkLibraries(t *testing.T, dir, release string) {
	t.Helper()
	root, err := openRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var want []string
	if release != "" {
		for _, name := range []string{
			"libcuda.so", "libcuda.so.1", "libcuda.so.N", "libnvidia-ptxjitcompiler.so.1", "libnvidia-ptxjitcompiler.so.N",
		} {
			want = append(want, "/usr/local/"+release+"/compat/"+name)
		}
	}
	got := compatLibraries(root, version{580, 95, 5})
	for i := range got {
		got[i] = regexp.MustCompile(`[0-9]+\.[0-9.]+$`).ReplaceAllString(got[i], "N")
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got libraries %q, want %q", got, want)
	}
}

func TestCompatLibrariesOutsideRoot(t *testing.T) {
	for _, tc := range []struct{ link, target string }{
		{"usr/local", "../../outside/usr/local"},
		{"usr/local/cuda", "/outside/usr/local/cuda-13.1"},
		{"usr/local/cuda", "../../../outside/usr/local/cuda-13.1"},
		{"usr/local/cuda/compat", "/proc/self/cwd"},
		{"usr/local/cuda/compat", "../../../../outside/usr/local/cuda-13.1/compat"},
		{"usr/local/cuda/compat/libcuda.so.1", "/outside/usr/local/cuda-13.1/compat/libcuda.so.590.44.01"},
		{"usr/local/cuda/compat/libcuda.so.1", "/proc/self/cwd/libcuda.so.590.44.01"},
	} {
		t.Run(tc.link+" to "+tc.target, func(t *testing.T) {
			dir := t.TempDir()
			outside := filepath.Join(dir, "outside")
			release("cuda-13.1", "590.44.01", noNote).write(t, outside)
			t.Chdir(filepath.Join(outside, "usr/local/cuda-13.1/compat"))
			tree{"rootfs/" + tc.link: "->" + tc.target}.write(t, dir)
			checkLibraries(t, filepath.Join(dir, "rootfs"), "")
		})
	}
}

// Files other than regular ones are neither opened nor added to the cache.
func TestCompatLibrariesAreRegularFiles(t *testing.T) {
	dir := t.TempDir()
	compat := filepath.Join(dir, "usr/local/cuda-13.1/compat")
	release("cuda-13.1", "590.44.01", noNote).write(t, dir)
	for _, name := range []string{"libpipe.so.1", "nolib.so.1", "libtext"} {
		if err := unix.Mkfifo(filepath.Join(compat, name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	checkLibraries(t, dir, "cuda-13.1")
	if err := os.Remove(filepath.Join(compat, "libcuda.so.1")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(compat, "libcuda.so.1"), 0o644); err != nil {
		t.Fatal(err)
	}
	checkLibraries(t, dir, "")
}

// Sizes declared in a file are not trusted.
func TestReadNoteLimits(t *testing.T) {
	data := object(t, validNote+strings.Repeat(" ", maxNote))
	if _, _, err := readNote(strings.NewReader(string(data))); err == nil {
		t.Error("read a note over the limit")
	}
	file := &limitedReaderAt{strings.NewReader(string(object(t, validNote))), 100}
	if _, _, err := readNote(file); err == nil {
		t.Error("read a libcuda over the limit")
	}
}

// Whatever its content, a libcuda does not support a driver of the same version or newer.
func FuzzSupportsDriver(f *testing.F) {
	f.Add(object(f, noNote))
	f.Add(object(f, validNote))
	f.Add(object(f, malformedNote))
	f.Fuzz(func(t *testing.T, data []byte) {
		libcuda := version{590, 44, 1}
		for _, driver := range []version{libcuda, {590, 105, 8}, {595, 10}} {
			if supportsDriver(strings.NewReader(string(data)), libcuda, driver) {
				t.Errorf("libcuda %v supports driver %v", libcuda, driver)
			}
		}
	})
}

func TestHookAddsCompatLibraries(t *testing.T) {
	const nvml = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
	for _, tc := range []struct{ version, libcuda string }{
		{"590.44.01", "/usr/local/cuda-13.1/compat/libcuda.so.1"},
		{"570.86.15", library},
	} {
		root, state := bundle(t)
		release("cuda-13.1", tc.version, noNote).write(t, root)
		for range 2 { // the second run finds them in the cache
			if err := hook([]string{"--driver-version=580.95.05", library, nvml}, strings.NewReader(state)); err != nil {
				t.Fatal(err)
			}
		}
		data, err := os.ReadFile(filepath.Join(root, "etc/ld.so.cache"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ldcache.Parse(data); err != nil {
			t.Fatal(err)
		}
		for name, file := range map[string]string{"libcuda.so.1": tc.libcuda, "libnvidia-ml.so.1": nvml} {
			if got := cached(t, root, name); !slices.Equal(got, []string{file}) {
				t.Errorf("libcuda %s: got %s at %q in the cache, want %s", tc.version, name, got, file)
			}
		}
	}
}

// cached returns the paths of a library in the ld.so.cache of a root, as printed by ldconfig.
func cached(t *testing.T, root, name string) (files []string) {
	t.Helper()
	out, err := exec.Command("/sbin/ldconfig", "-p", "-C", filepath.Join(root, "etc/ld.so.cache")).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if file, ok := strings.CutPrefix(line, "\t"+name+" (libc6,x86-64) => "); ok {
			files = append(files, strings.TrimSpace(file))
		}
	}
	return files
}
