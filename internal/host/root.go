package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// Root is a directory that stands for a root file system: the node's, or that
// of a driver which brings its own. The zero Root is not usable.
type Root struct {
	dir  string // where this process sees it
	path string // where the node sees it
}

// NewRoot returns the node's root file system as this process sees it at dir.
func NewRoot(dir string) Root { return Root{dir: filepath.Clean(dir), path: "/"} }

// Sub returns the root file system that the node has at name.
func (r Root) Sub(name string) (Root, error) {
	inside, err := r.Resolve(name)
	if err != nil {
		return Root{}, err
	}
	return Root{dir: filepath.Join(r.dir, inside), path: filepath.Join(r.path, inside)}, nil
}

// Resolve follows every link of name within the root. The result is absolute
// within the root; it need not exist.
func (r Root) Resolve(name string) (string, error) {
	joined, err := securejoin.SecureJoin(r.dir, name)
	if err != nil {
		return "", fmt.Errorf("resolving %s within %s: %w", name, r.dir, err)
	}
	inside, err := filepath.Rel(r.dir, joined)
	if err != nil {
		return "", fmt.Errorf("resolving %s within %s: %w", name, r.dir, err)
	}
	return filepath.Join("/", inside), nil
}

// NodePath is where the node sees name, which must be resolved.
func (r Root) NodePath(name string) string { return filepath.Join(r.path, name) }

// LocalPath is where this process sees name, which must be resolved.
func (r Root) LocalPath(name string) string { return filepath.Join(r.dir, name) }

func (r Root) String() string { return r.path }

// ReadFile reads the regular file that name resolves to, if it has a sane size.
func (r Root) ReadFile(name string) ([]byte, error) {
	file, err := r.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readAll(file, maxFile)
}

// Open opens the regular file that name resolves to, for reading. Anything else is an error.
func (r Root) Open(name string) (*os.File, error) {
	handle, err := r.open(name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	return openRegular(handle)
}

// ReadDir lists the directory that name resolves to, sorted by name. A directory with an absurd
// number of entries is an error.
func (r Root) ReadDir(name string) ([]fs.DirEntry, error) {
	dir, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(entries) > maxEntries {
		return nil, fmt.Errorf("listing %s: more than %d entries", dir.Name(), maxEntries)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// Stat describes the file that name resolves to.
func (r Root) Stat(name string) (fs.FileInfo, error) {
	handle, err := r.open(name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	return handle.Stat()
}

// Glob returns the paths that fit pattern, sorted. Only its last element may
// have wildcards. What leads to nothing, or to a directory, is left out.
func (r Root) Glob(pattern string) ([]string, error) {
	dir, base := path.Split(pattern)
	entries, err := r.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, entry := range entries {
		name := path.Join(dir, entry.Name())
		if fits, err := path.Match(base, entry.Name()); err != nil {
			return nil, err
		} else if !fits {
			continue
		}
		if info, err := r.Stat(name); err == nil && !info.IsDir() {
			paths = append(paths, name)
		}
	}
	return paths, nil
}

// open opens the file that name resolves to. With O_PATH it only stands for it, and
// does nothing to it. The kernel resolves the name, so that nobody can put a link
// in its way meanwhile. Where it is too old for that, or names change under it, the
// library takes the many more steps that this takes without it; an offer of GPUs
// waits for dozens of files.
func (r Root) open(name string, flags int) (*os.File, error) {
	file, err := r.kernelOpen(name, flags)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAGAIN) {
		file, err = r.slowOpen(name, flags)
	}
	if errno := unix.Errno(0); errors.As(err, &errno) {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(r.dir, name), Err: errno}
	}
	return file, err
}

func (r Root) kernelOpen(name string, flags int) (*os.File, error) {
	root, err := unix.Open(r.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, name, &unix.OpenHow{
		Flags:   uint64(flags) | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(r.dir, name)), nil
}

func (r Root) slowOpen(name string, flags int) (*os.File, error) {
	handle, err := pathrs.OpenInRoot(r.dir, name)
	if err != nil || flags == unix.O_PATH {
		return handle, err
	}
	defer handle.Close()
	return pathrs.Reopen(handle, flags|unix.O_CLOEXEC)
}
