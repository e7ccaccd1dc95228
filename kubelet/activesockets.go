package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// dialTimeout bounds the connection to one socket. A server that listens accepts at once.
	dialTimeout = time.Second
	// maxDialed bounds the number of sockets that are dialed.
	maxDialed = 64
)

// ActiveSockets returns the names of the sockets with a listener in a device-plugins directory, without the
// kubelet's own. Each belongs to a device plugin of the node.
func ActiveSockets(ctx context.Context, dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("listing device plugin sockets: %w", err)
	}
	dialed := 0
	for _, e := range entries {
		if e.Type() != fs.ModeSocket || e.Name() == kubeletSocketName || dialed == maxDialed {
			continue
		}
		dialed++
		if hasListener(ctx, filepath.Join(dir, e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// hasListener reports whether a process listens on a socket. Only a refused connection or a missing file proves
// that none does; other errors may come from a slow server.
func hasListener(ctx context.Context, path string) bool {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist)
}
