package host

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	securejoin "github.com/cyphar/filepath-securejoin"
)

// Root is a directory that stands for a root file system: the node's, or that
// of a driver which brings its own. The zero Root is not usable.
type Root struct {
	dir  string // where this process sees it
	path string // where the node sees it
}

// NewRoot returns the node's root file system as this process sees it at dir.
func NewRoot(dir string) Root { return Root{dir: filepath.Clean(dir), path: "/"} }

// Sub returns the root file system that the node has at path.
func (r Root) Sub(path string) (Root, error) {
	inside, err := r.Resolve(path)
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

// ReadFile reads the file that name resolves to.
func (r Root) ReadFile(name string) ([]byte, error) {
	inside, err := r.Resolve(name)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(r.LocalPath(inside))
}

// ReadDir lists the directory that name resolves to, sorted by name.
func (r Root) ReadDir(name string) ([]fs.DirEntry, error) {
	inside, err := r.Resolve(name)
	if err != nil {
		return nil, err
	}
	return os.ReadDir(r.LocalPath(inside))
}

// Stat describes the file that name resolves to.
func (r Root) Stat(name string) (fs.FileInfo, error) {
	inside, err := r.Resolve(name)
	if err != nil {
		return nil, err
	}
	return os.Lstat(r.LocalPath(inside))
}
