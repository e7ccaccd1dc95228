package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// staleAfter is the age at which no process writes a temporary file any more. Writing one takes
// seconds.
const staleAfter = time.Hour

// WriteFile replaces the file at path with data. A reader, or the node after a crash, sees either
// all of the old file or all of the new one. check inspects the new file before it takes the
// place of the old one; its error leaves the old file unchanged.
//
// The temporary file is in path's own directory: container runtimes watch their CDI directories
// and see a rename only when it happens inside them. What earlier processes left there when they
// were killed is removed.
func WriteFile(path string, data []byte, mode fs.FileMode, check func(path string) error) error {
	if err := replace(path, data, mode, check); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func replace(path string, data []byte, mode fs.FileMode, check func(path string) error) error {
	dir := filepath.Dir(path)
	removeStale(dir, filepath.Base(path))
	// Runtimes read only what ends in .yaml or .json.
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

// removeStale removes old temporary files of a file. It has no error: what cannot be removed does
// not keep the file from being written.
func removeStale(dir, name string) {
	names, err := Names(dir, maxEntries)
	if err != nil {
		return
	}
	for _, entry := range names {
		random, temporary := strings.CutPrefix(entry, "."+name+".")
		if !temporary || random == "" || strings.Trim(random, "0123456789") != "" {
			continue
		}
		path := filepath.Join(dir, entry)
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > staleAfter {
			_ = os.Remove(path)
		}
	}
}

// renamed is an error about a temporary file that names the file it was to become instead. A
// temporary file has another name each time, which would make each retry look like a new error.
type renamed struct {
	error
	from, to string
}

func (r renamed) Error() string { return strings.ReplaceAll(r.error.Error(), r.from, r.to) }
func (r renamed) Unwrap() error { return r.error }

func fill(f *os.File, data []byte, mode fs.FileMode) error {
	_, err := f.Write(data)
	// CreateTemp makes the mode 0600, and Chmod, unlike open, ignores the umask.
	err = errors.Join(err, f.Chmod(mode), f.Sync())
	return errors.Join(err, f.Close())
}

// syncDir makes the rename itself survive a crash.
func syncDir(dir string) error {
	d, err := openDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
