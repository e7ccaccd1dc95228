package images

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/product"
)

// suite is the Debian release of the images.
const suite = "bookworm"

const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// keepFor is how long an archive is kept after its last use. Other checkouts and processes share the cache.
const keepFor = 2 * time.Hour

// A builder builds images with buildah, in a separate store below the cache.
type builder struct{ cache string }

func newBuilder() (*builder, error) {
	cache, err := tools.CacheDir()
	if err != nil {
		return nil, err
	}
	return &builder{cache: filepath.Join(cache, "images")}, nil
}

// archive returns the path of the archive of an image. If the cache has none for the key, it calls produce and exports
// the image.
func (b *builder) archive(ctx context.Context, key, name string, produce func(context.Context) error) (string, error) {
	file := filepath.Join(b.cache, key+".tar")
	err := once(ctx, file, func(temporary string) error {
		if err := produce(ctx); err != nil {
			return err
		}
		return b.run(ctx, "push", "--quiet", name, "docker-archive:"+temporary+":"+name)
	})
	if err != nil {
		return "", fmt.Errorf("building the image %s: %w", name, err)
	}
	return file, nil
}

// once is tools.Once for an archive or directory, whose modification time is the time of its last use; see prune.
func once(ctx context.Context, file string, produce func(temporary string) error) error {
	if err := tools.Once(ctx, file, produce); err != nil {
		return err
	}
	return os.Chtimes(file, time.Time{}, time.Now())
}

// prune removes the archives and directories that match a pattern and were not used recently. They were built from
// earlier states of the repository. It keeps their lock files, which other processes may have open.
func (b *builder) prune(pattern string) error {
	old, err := filepath.Glob(filepath.Join(b.cache, pattern))
	if err != nil {
		return err
	}
	for _, name := range old {
		if info, err := os.Stat(name); err != nil || time.Since(info.ModTime()) < keepFor {
			continue
		}
		if err := os.RemoveAll(name); err != nil {
			return fmt.Errorf("removing a stale image: %w", err)
		}
	}
	return nil
}

// commit creates an image from another one, with source added at target and the given buildah configuration.
func (b *builder) commit(ctx context.Context, name, from, source, target string, config ...string) error {
	container, err := output(b.command(ctx, "from", "--pull-never", from))
	if err != nil {
		return err
	}
	if err := b.run(ctx, "add", "--quiet", container, source, target); err != nil {
		return err
	}
	if len(config) > 0 {
		if err := b.run(ctx, append(append([]string{"config"}, config...), container)...); err != nil {
			return err
		}
	}
	return b.run(ctx, "commit", "--quiet", "--rm", container, name)
}

func (b *builder) command(ctx context.Context, args ...string) *exec.Cmd {
	store := []string{"--root", filepath.Join(b.cache, "store"), "--runroot", filepath.Join(b.cache, "run")}
	return isolated(ctx, "buildah", append(store, args...)...)
}

// isolated returns a command with its own mount and PID namespaces. Its processes end when it is killed, and removing
// its files cannot descend into its mounts.
func isolated(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "unshare",
		append([]string{"--mount", "--pid", "--fork", "--kill-child", "--mount-proc", name}, args...)...)
}

func (b *builder) run(ctx context.Context, args ...string) error {
	_, err := output(b.command(ctx, args...))
	return err
}

// digest returns a hash of the inputs of the agent's image and of a release, which includes deploy/gpucdi.yaml and the
// documents at the top level: the repository without tests, the chart and docs, the version of Go, and the build flags.
func digest(repository string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version(), product.GoFlags())
	err := filepath.WalkDir(repository, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(repository, name)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "deploy/gpucdi", "dist", "docs", "test"}, relative) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %d\n", relative, len(data))
		sum.Write(data)
		return nil
	})
	return fmt.Sprintf("%x", sum.Sum(nil))[:12], err
}
