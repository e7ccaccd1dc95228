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

// staleAfter is the age of a temporary file after which no process can still be writing it. Writing takes seconds.
const staleAfter = time.Hour

// WriteFile replaces the file at path atomically and durably: readers, and the node after a crash, see either the
// complete old file or the complete new one. check is called with the path of the new file before the rename; if it
// returns an error, the old file stays unchanged.
//
// The temporary file is in the same directory, because container runtimes with CDI libraries before 1.1.1 do not detect
// a rename from another directory into the CDI directories that they watch. WriteFile removes temporary files that
// killed processes have left there.
func WriteFile(path string, data []byte, mode fs.FileMode, check func(path string) error) error {
	if err := replace(path, data, mode, check); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// RemoveFile removes the file at path durably.
func RemoveFile(path string) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func replace(path string, data []byte, mode fs.FileMode, check func(path string) error) error {
	dir := filepath.Dir(path)
	removeStale(dir, filepath.Base(path))
	// The random suffix keeps runtimes from loading the file: they load only .yaml and .json files.
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		err = tempFileError{err, failed.Path, path}
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
		return tempFileError{errors.Join(err, os.Remove(tmp.Name())), tmp.Name(), path}
	}
	return syncDir(dir)
}

// removeStale removes stale temporary files of the file with that name. It ignores errors, because they do not
// prevent writing.
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

// tempFileError is an error about a temporary file. Its text has the path of the final file instead, because the random
// name of the temporary file would make the error of each retry look different.
type tempFileError struct {
	error
	from, to string
}

func (e tempFileError) Error() string { return strings.ReplaceAll(e.error.Error(), e.from, e.to) }
func (e tempFileError) Unwrap() error { return e.error }

func fill(f *os.File, data []byte, mode fs.FileMode) error {
	_, err := f.Write(data)
	// CreateTemp uses mode 0600. Chmod, unlike open, ignores the umask.
	err = errors.Join(err, f.Chmod(mode), f.Sync())
	return errors.Join(err, f.Close())
}

// syncDir makes renames and removals in dir durable.
func syncDir(dir string) error {
	d, err := openDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
