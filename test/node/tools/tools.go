// Package tools builds the programs that a node is made of, and those that ours is held
// against, from their Go modules at exact versions, into a cache: a second time it only looks
// whether they are there.
//
// It needs the go command, the module proxy for what the module cache lacks, a C compiler and
// libseccomp's headers, and to be called from within this module.
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

// Tool is something that can be built: one program or a few that belong together.
type Tool string

// The tools.
const (
	// Kube is the program kube and, as links to it, kubectl and the components of Kubernetes.
	Kube Tool = "kube"
	// Kubelet134 is the kubelet of an older Kubernetes.
	Kubelet134 Tool = "kubelet-1.34"
	// Containerd is containerd, its shim for runc, and ctr.
	Containerd Tool = "containerd"
	// Containerd17 is the same of the releases that have CDI as a choice.
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
	// NVIDIAPlugin is NVIDIA's device plugin.
	NVIDIAPlugin Tool = "nvidia-device-plugin"
	// NVIDIAToolkit is nvidia-ctk, and the hook that its CDI specs name.
	NVIDIAToolkit Tool = "nvidia-container-toolkit"
)

const (
	module              = "github.com/gpucdi/gpucdi/test"
	kubelet134Version   = "v1.34.9"
	containerdVersion   = "v2.4.2"
	containerd17Version = "v1.7.35"
	crioVersion         = "v1.34.0"
	runcVersion         = "v1.5.2"
	helmVersion         = "v4.2.0"
	// Later versions need a module that the proxy does not have.
	nerdctlVersion = "v2.1.2"
)

// The versions of what ours is held against, the newest that the module proxy has.
const (
	NVIDIAPluginVersion  = "v0.19.3"
	NVIDIAToolkitVersion = "v1.20.1"
)

// CacheDir is where everything is kept that is slow to make, across runs: gpucdi below
// $XDG_CACHE_HOME or ~/.cache.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding a cache directory: %w", err)
	}
	dir = filepath.Join(dir, "gpucdi")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making the cache directory: %w", err)
	}
	return dir, nil
}

// ModuleDir is the source directory of the module that the tests are in.
func ModuleDir(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("finding the module %s (is the working directory inside it?): %w", module, explain(err))
	}
	return strings.TrimSpace(string(out)), nil
}

// Build returns the directory with the tool's programs, and builds them if it is not there.
// Processes that want the same tool at the same time wait for each other.
func Build(ctx context.Context, t Tool) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	r, err := recipe(ctx, t)
	if err != nil {
		return "", err
	}
	dir := r.dir(cache)
	err = Once(ctx, dir, func(dir string) error { return r.build(ctx, dir) })
	if err != nil {
		return "", fmt.Errorf("building %s %s: %w", t, r.version, err)
	}
	return dir, nil
}

// Built says whether Build has nothing to do.
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

// Once makes sure that the file or directory at path is there and whole: produce is called with
// a name beside it, which becomes path when produce succeeds. One process does it at a time.
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

// lock waits until this process alone holds the lock file.
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
			return nil, fmt.Errorf("waiting for the process that holds %s: %w", name, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// A build is how a tool is made.
type build struct {
	tool    Tool
	version string
	// module, at version, is where packages lie. It is built as its makers build it: as the main
	// module, with its own go.mod and go.sum.
	module string
	// in is the directory of a module of ours that pins what is built instead.
	in       string
	packages []string
	flags    []string
	env      []string
	// c are programs in C: their names, and where in the module their source is.
	c map[string]string
	// links are other names of the one program.
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
	// The name of a directory, and not of a file, is what the slash says. GOFLAGS may ask for the race
	// detector, for the product. A tool stays in the cache, for others who do not, and has its own races.
	args := append([]string{"build", "-C", in, "-mod=readonly", "-race=false", "-o", dir + "/"}, append(b.flags, b.packages...)...)
	if err := b.run(ctx, "go", args...); err != nil {
		return err
	}
	for name, from := range b.c {
		files, err := filepath.Glob(filepath.Join(in, from, "*.c"))
		if err != nil {
			return err
		}
		if err := b.run(ctx, "cc", append([]string{"-O2", "-o", filepath.Join(dir, name)}, files...)...); err != nil {
			return err
		}
	}
	for _, name := range b.links {
		if err := os.Symlink(string(b.tool), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// source returns the directory of a module in the module cache.
func source(ctx context.Context, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Dir = os.TempDir() // the version is to be the one named, whatever module we are in
	out, err := cmd.Output()
	var said struct{ Dir, Error string }
	if parsed := json.Unmarshal(out, &said); err != nil || parsed != nil {
		return "", fmt.Errorf("downloading %s: %w: %s", module, errors.Join(explain(err), parsed), said.Error)
	}
	return said.Dir, nil
}

func (b *build) run(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), b.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, tail(string(out)))
	}
	return nil
}

// tail keeps the end of a long output, where the error is.
func tail(s string) string {
	const most = 4000
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}

// explain adds what a command wrote about its failure.
func explain(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}

// digest names a source file's content.
func digest(name string) (string, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))[:8], nil
}
