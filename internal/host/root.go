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

// Root is the root file system of the node or of a driver container. The zero Root is invalid. Names passed to its
// methods are paths within the root.
type Root struct {
	dir  string // path in this process's file system
	path string // path on the node
}

// NewRoot returns the node's root file system, which is mounted at dir.
func NewRoot(dir string) Root { return Root{dir: filepath.Clean(dir), path: "/"} }

// Sub returns the root file system at name, such as that of a driver container.
func (r Root) Sub(name string) (Root, error) {
	inside, err := r.Resolve(name)
	if err != nil {
		return Root{}, err
	}
	return Root{dir: filepath.Join(r.dir, inside), path: filepath.Join(r.path, inside)}, nil
}

// Resolve resolves all symlinks in name within the root. The result is absolute within the root and need not exist.
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

// NodePath returns the path of name on the node. name must not contain symlinks; see Resolve.
func (r Root) NodePath(name string) string { return filepath.Join(r.path, name) }

// LocalPath returns the path of name in this process's file system. name must not contain symlinks; see Resolve.
func (r Root) LocalPath(name string) string { return filepath.Join(r.dir, name) }

func (r Root) String() string { return r.path }

// ReadFile reads the regular file that name resolves to. It returns a *TooLargeError if the file is larger than 4 MiB.
func (r Root) ReadFile(name string) ([]byte, error) {
	file, err := r.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readAll(file, maxFile)
}

// Open opens the file that name resolves to for reading. It returns an error if the file is not regular.
func (r Root) Open(name string) (*os.File, error) {
	handle, err := r.open(name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	return openRegular(handle)
}

// ReadDir returns the entries of the directory that name resolves to, sorted by name. It returns an error if there are
// more than 32768.
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

// Stat returns the FileInfo of the file that name resolves to.
func (r Root) Stat(name string) (fs.FileInfo, error) {
	handle, err := r.open(name, unix.O_PATH)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	return handle.Stat()
}

// Glob returns the files that match pattern, sorted. Only the last element of the pattern may have wildcards.
// Directories and dangling symlinks are omitted.
func (r Root) Glob(pattern string) ([]string, error) {
	dir, base := path.Split(pattern)
	if !strings.ContainsAny(base, `*?[\`) {
		return r.existing(path.Join(dir, base))
	}
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
		if matched, err := path.Match(base, entry.Name()); err != nil {
			return nil, err
		} else if !matched {
			continue
		}
		if info, err := r.Stat(name); err == nil && !info.IsDir() {
			paths = append(paths, name)
		}
	}
	return paths, nil
}

// existing returns name unless it is missing, a directory or a dangling symlink. It does not list the directory, which may
// have thousands of entries, such as /usr/bin.
func (r Root) existing(name string) ([]string, error) {
	info, err := r.Stat(name)
	switch {
	case err == nil && !info.IsDir():
		return []string{name}, nil
	case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, nil
	}
	return nil, err
}

// open opens the file that name resolves to. It uses openat2, which resolves the name atomically. If the kernel lacks
// openat2 or denies it, or a concurrent rename interferes, it uses a fallback. The fallback is much slower, which
// matters because dozens of files are opened before GPUs are advertised.
func (r Root) open(name string, flags int) (*os.File, error) {
	file, err := r.openat2(name, flags)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAGAIN) {
		file, err = r.openFallback(name, flags)
	}
	if errno := unix.Errno(0); errors.As(err, &errno) {
		return nil, &fs.PathError{Op: "open", Path: filepath.Join(r.dir, name), Err: errno}
	}
	return file, err
}

func (r Root) openat2(name string, flags int) (*os.File, error) {
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

func (r Root) openFallback(name string, flags int) (*os.File, error) {
	handle, err := pathrs.OpenInRoot(r.dir, name)
	if err != nil || flags == unix.O_PATH {
		return handle, err
	}
	defer handle.Close()
	return pathrs.Reopen(handle, flags|unix.O_CLOEXEC)
}
