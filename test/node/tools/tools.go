// Package tools builds the programs of a node, and the programs that gpucdi is compared with, from Go modules at pinned
// versions into a cache.
//
// It requires the go command, the module proxy for modules that are not cached, a C compiler and libseccomp's headers,
// and a working directory within this module.
package tools

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Tool is one or more programs that are built together.
type Tool string

// The tools.
const (
	// Kube is two programs: kubectl, and kube with symlinks for etcd, the control plane and the kubelet.
	Kube Tool = "kube"
	// Kube134 is kube of Kubernetes 1.34.
	Kube134 Tool = "kube-1.34"
	// Containerd is containerd, its shim for runc, and ctr.
	Containerd Tool = "containerd"
	// Containerd17 is containerd 1.7, which disables CDI by default, with the same programs.
	Containerd17 Tool = "containerd-1.7"
	// CRIO is CRI-O and its helper pinns.
	CRIO Tool = "cri-o"
	// Runc is runc.
	Runc Tool = "runc"
	// Nerdctl is nerdctl.
	Nerdctl Tool = "nerdctl"
	// Helm is helm.
	Helm Tool = "helm"
	// Pause is the program of sandbox containers.
	Pause Tool = "pause"
	// NVIDIAPlugin is NVIDIA's device plugin and GPU feature discovery.
	NVIDIAPlugin Tool = "nvidia-device-plugin"
	// NVIDIADRADriver is NVIDIA's DRA driver for GPUs, gpu-kubelet-plugin.
	NVIDIADRADriver Tool = "nvidia-dra-driver"
	// NVIDIAToolkit is nvidia-ctk and nvidia-cdi-hook, the hook of its CDI specs.
	NVIDIAToolkit Tool = "nvidia-container-toolkit"
	// NVIDIARuntime is nvidia-container-runtime of the same module, which runs runc.
	NVIDIARuntime Tool = "nvidia-container-runtime"
)

const (
	module              = "github.com/gpucdi/gpucdi/test"
	containerdVersion   = "v2.4.2"
	containerd17Version = "v1.7.35"
	crioVersion         = "v1.34.0"
	runcVersion         = "v1.5.2"
	helmVersion         = "v4.2.0"
	// Later versions require a module that is not available from the Go module proxy.
	nerdctlVersion = "v2.1.2"
)

// Versions of the NVIDIA programs that gpucdi is compared with.
const (
	NVIDIAPluginVersion    = "v0.19.3"
	NVIDIADRADriverVersion = "v0.5.0"
	NVIDIAToolkitVersion   = "v1.20.1"
)

// CacheDir creates and returns the directory for built programs and images: gpucdi below $XDG_CACHE_HOME or ~/.cache.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding a cache directory: %w", err)
	}
	dir = filepath.Join(dir, "gpucdi")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("creating the cache directory: %w", err)
	}
	return dir, nil
}

// ModuleDir returns the directory of the test module.
func ModuleDir(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("finding the module %s: %w; run this from within the module", module, withStderr(err))
	}
	return strings.TrimSpace(string(out)), nil
}

// Build builds a tool unless it is cached, and returns the directory of its programs. Concurrent processes wait for
// each other.
func Build(ctx context.Context, t Tool) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	b, err := recipe(ctx, t)
	if err != nil {
		return "", err
	}
	dir := b.dir(cache)
	err = Once(ctx, dir, func(dir string) error { return b.build(ctx, dir) })
	if err != nil {
		return "", fmt.Errorf("building %s %s: %w", t, b.version, err)
	}
	return dir, nil
}

// Built reports whether a tool is cached.
func Built(ctx context.Context, t Tool) (bool, error) {
	cache, err := CacheDir()
	if err != nil {
		return false, err
	}
	b, err := recipe(ctx, t)
	if err != nil {
		return false, err
	}
	_, err = os.Stat(b.dir(cache))
	return err == nil, nil
}

// Once creates the file or directory at path unless it exists. It calls produce with a temporary path and renames that
// to path when produce succeeds, so that path is always complete. Concurrent processes wait for each other.
func Once(ctx context.Context, path string, produce func(temporary string) error) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	unlock, err := lock(ctx, path+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temporary := path + ".new"
	if err := os.RemoveAll(temporary); err != nil {
		return err
	}
	if err := produce(temporary); err != nil {
		return errors.Join(err, os.RemoveAll(temporary))
	}
	return os.Rename(temporary, path)
}

// lock waits for an exclusive lock on a file.
func lock(ctx context.Context, name string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("waiting for the lock %s: %w", name, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// A build describes how a tool is built.
type build struct {
	tool    Tool
	version string
	// module, at version, contains packages. It is built as the main module, with its own go.mod and go.sum.
	module string
	// in is the directory of a local module that pins the packages, if module is empty.
	in       string
	packages []string
	flags    []string
	env      []string
	// cPrograms maps names of C programs to their source directories in the module.
	cPrograms map[string]string
	// links are names of symlinks to the program of the first package.
	links []string
}

func (b *build) dir(cache string) string {
	return filepath.Join(cache, "tools", fmt.Sprintf("%s-%s-%s", b.tool, b.version, runtime.Version()))
}

func (b *build) build(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	in := b.in
	if b.module != "" {
		var err error
		if in, err = source(ctx, b.module+"@"+b.version); err != nil {
			return err
		}
	}
	// The trailing slash makes -o a directory. -race=false overrides GOFLAGS: cached tools are shared with runs without
	// the race detector.
	args := append([]string{"build", "-C", in, "-mod=readonly", "-race=false", "-o", dir + "/"}, append(b.flags, b.packages...)...)
	if err := b.run(ctx, "go", args...); err != nil {
		return err
	}
	for name, from := range b.cPrograms {
		files, err := filepath.Glob(filepath.Join(in, from, "*.c"))
		if err != nil {
			return err
		}
		if err := b.run(ctx, "cc", append([]string{"-O2", "-o", filepath.Join(dir, name)}, files...)...); err != nil {
			return err
		}
	}
	for _, name := range b.links {
		if err := os.Symlink(filepath.Base(b.packages[0]), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// source downloads a module, and returns its directory in the module cache.
func source(ctx context.Context, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Dir = os.TempDir() // outside of any module, whose go.mod could select another version
	out, err := cmd.Output()
	var result struct{ Dir, Error string }
	if errParse := json.Unmarshal(out, &result); err != nil || errParse != nil {
		return "", fmt.Errorf("downloading %s: %w: %s", module, errors.Join(withStderr(err), errParse), result.Error)
	}
	return result.Dir, nil
}

func (b *build) run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), b.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, tail(string(out)))
	}
	return nil
}

// tail returns the end of a long output, which contains the error.
func tail(s string) string {
	const most = 4000
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}

// withStderr adds the stderr of a command to its error.
func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}

// digest returns a hash of files.
func digest(names ...string) (string, error) {
	sum := sha256.New()
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		sum.Write(data)
	}
	return fmt.Sprintf("%x", sum.Sum(nil))[:8], nil
}
