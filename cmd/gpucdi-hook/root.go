package main

import (
	"errors"
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
