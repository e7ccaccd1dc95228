package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// openRoot returns a handle on a container's root file system, from which all else is resolved.
func openRoot(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// retries is how often a resolution is tried that was disturbed by somebody who renames what it
// goes through; whoever goes on doing it keeps the container from starting.
const retries = 128

// openBelow returns a handle on a file below a directory, without opening it. The kernel
// resolves name as if dir were the root, and follows no link out of it, no link that is no path
// (/proc/self/root), and nothing into another mount: a volume of the host at /etc is not the
// image's.
func openBelow(dir *os.File, name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | flags,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	for range retries {
		fd, err := unix.Openat2(int(dir.Fd()), name, &how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), name), nil
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return nil, &os.PathError{Op: "open within the container", Path: name, Err: err}
		}
	}
	return nil, &os.PathError{Op: "open within the container", Path: name, Err: unix.EAGAIN}
}

// openFile opens a regular file below a directory for reading.
func openFile(dir *os.File, name string, flags uint64) (*os.File, error) {
	// The handle does not open the file: that of a device would do something.
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
		return nil, fmt.Errorf("it is no regular file: %s", info.Mode())
	}
	return os.Open(procPath(handle))
}

// listBelow returns the names in a directory below another one, at most a number of them, in
// any order.
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

// procPath leads to what a handle stands for, whatever has its name by now.
func procPath(handle *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", handle.Fd()) }
