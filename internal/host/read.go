package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Limits for files of the node and the driver. Expected files are much smaller.
const (
	maxFile    = 4 << 20 // bytes per file
	maxEntries = 1 << 15 // entries per directory
)

// ReadFile reads a regular file of this process's file system, following symlinks. It returns an error if the file is
// not regular or larger than limit bytes.
func ReadFile(path string, limit int64) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	handle := os.NewFile(uintptr(fd), path)
	defer handle.Close()
	file, err := openRegular(handle)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readAll(file, limit)
}

// openRegular opens the regular file that an O_PATH handle refers to. It does not open other files, because opening a
// named pipe blocks until it has a writer, and opening a device can have side effects.
func openRegular(handle *os.File) (*os.File, error) {
	info, err := handle.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("opening %s: %w", handle.Name(), errNotRegular)
	}
	// pathrs.Reopen would check on each call that nothing is mounted over /proc, which takes most of the time of reading
	// dozens of small files. This process's own /proc is trusted.
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", handle.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: handle.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), handle.Name()), nil
}

var errNotRegular = errors.New("not a regular file")

// TooLargeError is returned if a file exceeds the limit of its reader.
type TooLargeError struct {
	Path  string
	Limit int64 // bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("reading %s: larger than %d bytes", e.Path, e.Limit)
}

// readAll ignores the size from stat: it is 0 in /proc, and files can grow.
func readAll(file *os.File, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		return nil, &TooLargeError{Path: file.Name(), Limit: limit}
	}
	return data, err
}

// Names returns the names in a directory of this process's file system, at most limit, in no particular order.
func Names(dir string, limit int) ([]string, error) {
	d, err := openDir(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(limit)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	return names, err
}

// openDir opens a directory. Unlike os.Open it does not block if dir is a named pipe.
func openDir(dir string) (*os.File, error) {
	return os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
}
