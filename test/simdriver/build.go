package simdriver

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed src
var sources embed.FS

// placeholder is the SONAME that the stub library is linked with. Each stub is a
// copy with another SONAME in place of the placeholder, so that the linker runs only once.
var placeholder = strings.Repeat("S", 96)

// target is one object to compile.
type target struct {
	name    string
	sources []string // glob patterns below src
	flags   []string
}

var targets = []target{
	{"libnvidia-ml", []string{"nvml/*.c"}, []string{"-shared", "-Wl,-soname,libnvidia-ml.so.1", "-ldl", "-lpthread"}},
	{"libcuda", []string{"cuda/*.c", "load.c"}, []string{"-shared", "-Wl,-soname,libcuda.so.1,-rpath,$ORIGIN", "-ldl", "-lpthread"}},
	{"stub", []string{"stub.c"}, []string{"-shared", "-nostdlib", "-Wl,-soname," + placeholder}},
	{"nvidia-smi", []string{"smi.c", "load.c"}, []string{"-ldl"}},
	{"nvidia-cuda-mps-control", []string{"mps/*.c"}, nil},
	{"nvidia-cuda-mps-server", []string{"mpsserver.c", "cuda/*.c", "load.c"}, []string{"-ldl", "-lpthread"}},
	{"program", []string{"program.c"}, nil},
}

// build returns the directory of the compiled objects. They are cached by a hash
// of the sources, the targets and the version of the compiler, for all driver
// versions. Several processes may build concurrently.
func build(cache string) (string, error) {
	key, err := buildKey()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "simdriver", key)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := mkdirs(filepath.Dir(dir)); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := compile(work); err != nil {
		return "", err
	}
	if err := os.Rename(filepath.Join(work, "out"), dir); err != nil {
		if _, missing := os.Stat(dir); missing != nil {
			return "", err
		}
	}
	return dir, nil
}

func buildKey() (string, error) {
	version, err := exec.Command("cc", "--version").Output() //nolint:noctx // terminates on its own
	if err != nil {
		return "", fmt.Errorf("getting the version of the C compiler: %w; install gcc and libc6-dev", err)
	}
	h := sha256.New()
	h.Write(version)
	fmt.Fprint(h, targets)
	err = fs.WalkDir(sources, "src", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := sources.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n%s", path, len(b), b)
		return err
	})
	return fmt.Sprintf("%x", h.Sum(nil)[:10]), err
}

func compile(work string) error {
	if err := os.CopyFS(work, sources); err != nil {
		return err
	}
	if err := mkdirs(filepath.Join(work, "out")); err != nil {
		return err
	}
	for _, t := range targets {
		var files []string
		for _, pattern := range t.sources {
			found, err := filepath.Glob(filepath.Join(work, "src", pattern))
			if err != nil {
				return err
			}
			files = append(files, found...)
		}
		args := slices.Concat([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC",
			"-fvisibility=hidden", "-o", filepath.Join(work, "out", t.name)}, files, t.flags)
		out, err := exec.Command("cc", args...).CombinedOutput() //nolint:noctx // terminates on its own
		if err != nil {
			return fmt.Errorf("compiling the simulated %s: %w\n%s", t.name, err, out)
		}
	}
	return nil
}

// stubNamed returns the stub library with a SONAME.
func stubNamed(stub []byte, soname string) []byte {
	name := append([]byte(soname), make([]byte, len(placeholder)-len(soname))...)
	return bytes.Replace(stub, []byte(placeholder), name, 1)
}
