package images

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gpucdi/gpucdi/test/node/tools"
)

// Root names a root file system by its distribution, dynamic loader or purpose.
type Root string

// The root file systems.
const (
	Debian12 Root = "debian"   // the root of the image DebianName
	Debian13 Root = "debian13" // a newer glibc
	// Compiler is Debian 12 with a C compiler and Python, like images that compile GPU kernels.
	Compiler Root = "compiler"
	// Docker is Debian 13 with Debian's docker, including rootless mode.
	Docker Root = "docker"
	// Lib64 has a glibc that searches /lib64 and /usr/lib64, as in RHEL and SUSE: the 64-bit glibc of Debian's i386
	// architecture.
	Lib64 Root = "lib64"
	// Distroless has only Debian's glibc, no shell and no ldconfig.
	Distroless Root = "distroless"
	// Musl has musl and no glibc.
	Musl Root = "musl"
)

// compilerPackages are installed in Compiler and in the Dockerfile's build image.
var compilerPackages = []string{"gcc", "libc6-dev", "make", "ca-certificates", "python3"}

// compilerKey is a cache key that changes with the packages.
var compilerKey = string(Compiler) + "-" + strings.Join(compilerPackages, "-")

// Tar returns the path of a tar archive of the root file system, which it builds unless the cache has it.
func (r Root) Tar(ctx context.Context) (string, error) {
	b, err := newBuilder()
	if err != nil {
		return "", err
	}
	switch r {
	case Debian13:
		return b.debootstrap(ctx, string(r), "trixie")
	case Compiler:
		return b.debootstrap(ctx, compilerKey, suite, compilerPackages...)
	case Docker:
		return b.debootstrap(ctx, string(r), "trixie", "docker.io", "docker-cli", "rootlesskit", "slirp4netns", "uidmap", "iproute2")
	case Lib64:
		return b.singlePackage(ctx, string(r), "i386", "libc6-amd64")
	case Distroless:
		return b.singlePackage(ctx, string(r), "amd64", "libc6")
	case Musl:
		return b.singlePackage(ctx, string(r), "amd64", "musl")
	case Debian12:
		return b.debootstrap(ctx, string(r), suite)
	}
	return "", fmt.Errorf("unknown root file system %q", r)
}

// singlePackage returns the path of a tar archive of one package of Debian 12, with the directories that container
// runtimes expect.
func (b *builder) singlePackage(ctx context.Context, key, architecture, name string) (string, error) {
	file := filepath.Join(b.cache, key+"-root.tar")
	err := tools.Once(ctx, file, func(temporary string) error {
		dir := temporary + ".d"
		defer os.RemoveAll(dir)
		downloads := filepath.Join(dir, "downloads")
		_, err := output(isolated(ctx, "debootstrap", "--download-only", "--variant=minbase",
			"--arch="+architecture, "--include="+name, suite, downloads))
		if err != nil {
			return err
		}
		packages, err := filepath.Glob(filepath.Join(downloads, "var/cache/apt/archives", name+"_*.deb"))
		if err != nil {
			return err
		}
		if len(packages) != 1 {
			return fmt.Errorf("debootstrap downloaded %q for the package %s, want one file", packages, name)
		}
		root := filepath.Join(dir, "root")
		if err := unpack(ctx, packages[0], root); err != nil {
			return err
		}
		return pack(ctx, root, temporary)
	})
	if err != nil {
		return "", fmt.Errorf("building a root file system from %s: %w", name, err)
	}
	return file, nil
}

// unpack extracts a Debian package into a new root with a merged /usr.
func unpack(ctx context.Context, deb, root string) error {
	for _, name := range []string{"bin", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(root, "usr", name), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil {
			return err
		}
	}
	for _, name := range []string{"dev", "etc", "proc", "sys", "tmp", "usr/local/bin"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			return err
		}
	}
	content := filepath.Join(filepath.Dir(root), "content.tar")
	data, err := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb).Output()
	if err != nil {
		return fmt.Errorf("reading the package %s: %w", deb, err)
	}
	if err := os.WriteFile(content, data, 0o600); err != nil {
		return err
	}
	_, err = output(exec.CommandContext(ctx, "tar", "--extract", "--keep-directory-symlink", "--file", content, "--directory", root))
	return err
}

// pack creates a tar archive of a root without caches, logs, translations and documentation.
func pack(ctx context.Context, root, file string) error {
	args := []string{"-C", root, "--create", "--file", file}
	for _, dir := range []string{
		"var/cache/apt/*", "var/lib/apt/lists/*", "var/log/*", "usr/share/doc/*", "usr/share/locale/*", "usr/share/man/*",
	} {
		args = append(args, "--exclude=./"+dir)
	}
	_, err := output(exec.CommandContext(ctx, "tar", append(args, ".")...))
	return err
}

// debootstrap returns the path of a tar archive of a minimal Debian with packages added.
func (b *builder) debootstrap(ctx context.Context, key, suite string, packages ...string) (string, error) {
	file := filepath.Join(b.cache, key+"-root.tar")
	err := tools.Once(ctx, file, func(temporary string) error {
		dir := temporary + ".d"
		defer os.RemoveAll(dir)
		args := []string{"--variant=minbase"}
		if len(packages) > 0 {
			args = append(args, "--include="+strings.Join(packages, ","))
		}
		if _, err := output(isolated(ctx, "debootstrap", append(args, suite, dir)...)); err != nil {
			return err
		}
		return pack(ctx, dir, temporary)
	})
	return file, err
}
