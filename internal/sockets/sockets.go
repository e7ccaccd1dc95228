// Package sockets checks Unix sockets, and watches directories that other processes also write to, such as the
// kubelet's device-plugins and plugins_registry directories.
package sockets

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"
)

// MaxPath is the maximum length of a socket's path in bytes; sun_path of sockaddr_un has 108 with the terminating zero.
const MaxPath = 107

// dialTimeout bounds one connection attempt. The kernel completes it without waiting for the server to accept.
const dialTimeout = time.Second

// HasListener reports whether a process listens on a socket. Only a refused connection or a missing file proves that
// none does; other errors may come from a slow server.
func HasListener(ctx context.Context, path string) bool {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist)
}

// Identity distinguishes a file from a later one at the same path, even if that reuses the inode number.
type Identity struct {
	dev, inode uint64
	modified   syscall.Timespec
}

// Identify returns the Identity of the file at path, without following a symlink.
func Identify(path string) (Identity, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return Identity{}, err
	}
	stat := info.Sys().(*syscall.Stat_t)
	return Identity{stat.Dev, stat.Ino, stat.Mtim}, nil
}
