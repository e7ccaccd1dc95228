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

// tree is a root file system: by path, a link, which begins with "->", one of the objects below,
// or what the file holds.
type tree map[string]string

// The objects: a libcuda without a note, and some with one.
const (
	plain     = "plain"
	works     = `{"Format": 1, "CUDA Version": "13.1", "Driver": [535, 550, 580, 590], "Device": [1, 2]}`
	malformed = `{"Driver": "all"}`
)

// object makes a libcuda with a note of that description.
func object(t testing.TB, description string) []byte {
	t.Helper()
	note := ""
	if description != plain {
		note = fmt.Sprintf(".section .note.cuda.fwd_compatibility,\"a\",@note\n.long 19, %d, 1\n.asciz \"NVIDIA Corporation\"\n.balign 4\n.ascii %q\n",
			len(description), description)
	}
	file := filepath.Join(t.TempDir(), "libcuda.so")
	cc := exec.Command("cc", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-x", "assembler", "-", "-o", file)
	cc.Stdin = strings.NewReader(note)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("making a libcuda: %v\n%s", err, out)
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
		if target, link := strings.CutPrefix(text, "->"); link {
			if err := os.Symlink(target, file); err != nil {
				t.Fatal(err)
			}
			continue
		}
		data := []byte(text)
		if slices.Contains([]string{plain, works, malformed}, text) {
			data = object(t, text)
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// release is what NVIDIA's package puts into the directory of a release.
func release(dir, version, object string) tree {
	dir = "usr/local/" + dir + "/compat/"
	return tree{
		dir + "libcuda.so." + version:                  object,
		dir + "libcuda.so.1":                           "->libcuda.so." + version,
		dir + "libcuda.so":                             "->libcuda.so.1",
		dir + "libnvidia-ptxjitcompiler.so.1":          "->libnvidia-ptxjitcompiler.so." + version,
		dir + "libnvidia-ptxjitcompiler.so." + version: plain,
	}
}

func (tr tree) and(others ...tree) tree {
	for _, other := range others {
		for name, text := range other {
			tr[name] = text
		}
	}
	return tr
}

// The node's driver is 580.95.05.
func TestTheImagesCUDA(t *testing.T) {
	const away = "usr/local/cuda-13.1"
	for _, tc := range []struct {
		name string
		tree tree
		want string // the release whose libraries are used
	}{
		{"none", tree{}, ""},
		{"a newer branch", release("cuda-13.1", "590.44.01", plain), "cuda-13.1"},
		{"the same branch", release("cuda-13.0", "580.99.01", plain), ""},
		{"an older branch", release("cuda-12.9", "575.57.08", plain), ""},
		{"a number that is greater only as text", release("cuda-8.0", "99.1", plain), ""},
		{"one that works on the branch", release("cuda-13.1", "590.44.01", works), "cuda-13.1"},
		{"one that works on the branch, and is newer within it", release("cuda-13.0", "580.105.08", works), "cuda-13.0"},
		{"one that works on the branch, and is older within it", release("cuda-13.0", "580.82.07", works), ""},
		{"one that says nothing that is understood", release("cuda-13.1", "590.44.01", malformed), ""},
		{"one that is no library", release("cuda-13.1", "590.44.01", "text"), ""},
		{"the link to a release", release("cuda-13.1", "590.44.01", plain).and(tree{"usr/local/cuda": "->/etc/alternatives/cuda", "etc/alternatives/cuda": "->/usr/local/cuda-13.1"}), "cuda"},
		{"several releases", release("cuda-12.9", "575.57.08", plain).and(release("cuda-13.2", "595.10", plain), release("cuda-13.1", "590.44.01", plain)), "cuda-13.2"},
		{"a release that is newer than what the driver works with", release("cuda-13.1", "590.44.01", plain).and(release("cuda-14.0", "610.1", malformed)), "cuda-13.1"},
		{"a directory of another kind", release("cudnn-13.1", "590.44.01", plain), ""},
		{"no version", tree{away + "/compat/libcuda.so.1": plain}, ""},
		{"a version that is none", release("cuda-13.1", "590.4x", plain), ""},
		{"a version with a sign", release("cuda-13.1", "+590.44", plain), ""},
		{"a version without a number", release("cuda-13.1", "590..44", plain), ""},
		{"a version that no number holds", release("cuda-13.1", "99999999999999999999.44", plain), ""},
		{"a link to a file of another name", release("cuda-13.1", "1", plain).and(tree{away + "/compat/libcuda.so.1": "->590.44.01", away + "/compat/590.44.01": plain}), ""},
		{"a link in a circle", tree{away + "/compat/libcuda.so.1": "->libcuda.so.1"}, ""},
		{"a link to nothing", tree{away + "/compat/libcuda.so.1": "->libcuda.so.590.44.01"}, ""},
		{"a file for a directory", tree{away + "/compat": "text"}, ""},
		{"a file for all directories", tree{"usr/local": "text"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			tc.tree.write(t, dir)
			checkLibraries(t, dir, tc.want)
		})
	}
}

// checkLibraries looks for all names of the libraries in the directory of a release, or for none.
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
		t.Errorf("libraries %q, want %q", got, want)
	}
}

// A directory of the image leads to one that is outside of it, or inside, as it is understood.
func TestTheImagesCUDAIsWithinTheRoot(t *testing.T) {
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
			release("cuda-13.1", "590.44.01", plain).write(t, outside)
			t.Chdir(filepath.Join(outside, "usr/local/cuda-13.1/compat"))
			tree{"rootfs/" + tc.link: "->" + tc.target}.write(t, dir)
			checkLibraries(t, filepath.Join(dir, "rootfs"), "")
		})
	}
}

// What is no regular file is neither opened nor put into the cache.
func TestTheImagesCUDAIsOfFiles(t *testing.T) {
	dir := t.TempDir()
	compat := filepath.Join(dir, "usr/local/cuda-13.1/compat")
	release("cuda-13.1", "590.44.01", plain).write(t, dir)
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

// The sizes in a file are nobody's word.
func TestLibcudaIsBounded(t *testing.T) {
	data := object(t, works+strings.Repeat(" ", maxNote))
	if _, _, err := readNote(strings.NewReader(string(data))); err == nil {
		t.Error("a note of any size is read")
	}
	file := &bounded{strings.NewReader(string(object(t, works))), 100}
	if _, _, err := readNote(file); err == nil {
		t.Error("a libcuda of any size is read")
	}
}

// Nothing that a file says makes it fit a driver that is as new.
func FuzzLibcuda(f *testing.F) {
	f.Add(object(f, plain))
	f.Add(object(f, works))
	f.Add(object(f, malformed))
	f.Fuzz(func(t *testing.T, data []byte) {
		its := version{590, 44, 1}
		for _, driver := range []version{its, {590, 105, 8}, {595, 10}} {
			if worksOn(strings.NewReader(string(data)), its, driver) {
				t.Errorf("%v is used on %v", its, driver)
			}
		}
	})
}

func TestHookTakesTheImagesCUDA(t *testing.T) {
	const nvml = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
	for _, tc := range []struct{ version, libcuda string }{
		{"590.44.01", "/usr/local/cuda-13.1/compat/libcuda.so.1"},
		{"570.86.15", library},
	} {
		root, state := bundle(t)
		release("cuda-13.1", tc.version, plain).write(t, root)
		for range 2 { // the second time the cache has them
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
				t.Errorf("with %s the cache has %s at %q, want %s", tc.version, name, got, file)
			}
		}
	}
}

// cached is where ldconfig finds a library in the cache of a root.
func cached(t *testing.T, root, name string) (files []string) {
	t.Helper()
	out, err := exec.Command("/sbin/ldconfig", "-p", "-C", filepath.Join(root, "etc/ld.so.cache")).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if file, is := strings.CutPrefix(line, "\t"+name+" (libc6,x86-64) => "); is {
			files = append(files, strings.TrimSpace(file))
		}
	}
	return files
}
