package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// WriteFile replaces path with data so that a reader, or the node after a
// crash, sees either all of the old file or all of the new one. Before the
// new one takes the old one's place, check looks at it where it lies; an error
// of its leaves the old file as it was.
//
// The temporary file is in path's own directory: the container runtimes watch
// their CDI directories, and see a rename only when it happens inside them.
func WriteFile(path string, data []byte, mode fs.FileMode, check func(path string) error) error {
	if err := replace(path, data, mode, check); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func replace(path string, data []byte, mode fs.FileMode, check func(path string) error) error {
	dir := filepath.Dir(path)
	// The leading dot and the missing .yaml keep the runtimes from reading it.
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		err = renamed{err, failed.Path, path}
	}
	if err != nil {
		return err
	}
	err = fill(tmp, data, mode)
	if err == nil {
		err = check(tmp.Name())
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return renamed{errors.Join(err, os.Remove(tmp.Name())), tmp.Name(), path}
	}
	return syncDir(dir)
}

// renamed is an error about the temporary file that tells of the file which it was to
// become. The temporary file has another name each time, and the same trouble would be news
// whenever it is tried again.
type renamed struct {
	error
	from, to string
}

func (r renamed) Error() string { return strings.ReplaceAll(r.error.Error(), r.from, r.to) }
func (r renamed) Unwrap() error { return r.error }

func fill(f *os.File, data []byte, mode fs.FileMode) error {
	_, err := f.Write(data)
	// CreateTemp gives 0600 less the umask; runtimes and unprivileged tools
	// read specs too.
	err = errors.Join(err, f.Chmod(mode), f.Sync())
	return errors.Join(err, f.Close())
}

// syncDir makes the rename itself survive a crash.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
