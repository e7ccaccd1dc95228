package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// openRoot returns an O_PATH handle for a container's root file system. All other paths are resolved below it.
func openRoot(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// maxAttempts limits the attempts to resolve a path while its components are being renamed. After that,
// openBelow returns EAGAIN.
const maxAttempts = 128

// openBelow returns an O_PATH handle for a file below a directory, without opening it. The kernel resolves name with
// dir as the root. It follows no symlinks out of dir and no magic links (/proc/self/root), and does not cross mounts: a
// host volume at /etc is not part of the image.
func openBelow(dir *os.File, name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for range maxAttempts {
		fd, err := unix.Openat2(int(dir.Fd()), name, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), name), nil
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return nil, &os.PathError{Op: "open in the container", Path: name, Err: err}
		}
	}
	return nil, &os.PathError{Op: "open in the container", Path: name, Err: unix.EAGAIN}
}

// openFile opens a regular file below a directory for reading.
func openFile(dir *os.File, name string, flags uint64) (*os.File, error) {
	// Check the type before opening the file: opening a device has side effects.
	handle, err := openBelow(dir, name, flags)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	info, err := handle.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("not a regular file: %s", info.Mode())
	}
	return os.Open(procPath(handle))
}

// listBelow returns at most limit names from a directory below dir, in no particular order.
func listBelow(dir *os.File, name string, limit int) ([]string, error) {
	handle, err := openBelow(dir, name, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	opened, err := os.Open(procPath(handle))
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	names, err := opened.Readdirnames(limit)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return names, nil
}

// procPath returns a path to the file of a handle, even if the file has been renamed or replaced.
func procPath(handle *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", handle.Fd()) }
