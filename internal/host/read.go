package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// The limits of what is read from the file systems of the node and the driver. Nothing that is
// expected there comes close.
const (
	maxFile    = 4 << 20 // bytes of a file
	maxEntries = 1 << 15 // names in a directory
)

// ReadFile reads a regular file of this process's own file system, following links. Anything
// else, and a file of more than limit bytes, is an error.
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

// openRegular opens for reading what an O_PATH handle stands for, if that is a regular file.
// Opening a named pipe blocks until it has a writer, and opening a device can act on it.
func openRegular(handle *os.File) (*os.File, error) {
	info, err := handle.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("opening %s: %w", handle.Name(), errNotRegular)
	}
	// Nothing is mounted over this process's own /proc. The library checks that
	// each time, which is most of what reading dozens of small files would take.
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", handle.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: handle.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), handle.Name()), nil
}

var errNotRegular = errors.New("not a regular file")

// TooLargeError is returned for a file that is larger than its reader accepts.
type TooLargeError struct {
	Path  string
	Limit int64 // in bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("reading %s: larger than %d bytes", e.Path, e.Limit)
}

// readAll does not trust the file's size: files of /proc have none, and others can grow.
func readAll(file *os.File, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		return nil, &TooLargeError{Path: file.Name(), Limit: limit}
	}
	return data, err
}

// Names lists at most limit names of a directory of this process's own file system, in no order.
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

// openDir does not block where a named pipe has taken the directory's place.
func openDir(dir string) (*os.File, error) {
	return os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
}
