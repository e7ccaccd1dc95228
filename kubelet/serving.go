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
	// probeTimeout bounds the connection to one socket. A server that listens accepts at once.
	probeTimeout = 100 * time.Millisecond
	// maxProbed bounds how many sockets are tried.
	maxProbed = 64
)

// Serving returns the names of the sockets in a device-plugins directory on which some process
// listens, the kubelet's own left out: the device plugins of the node.
func Serving(ctx context.Context, dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("listing the device plugins: %w", err)
	}
	probed := 0
	for _, e := range entries {
		if e.Type() != fs.ModeSocket || e.Name() == kubeletSocketName || probed == maxProbed {
			continue
		}
		probed++
		if serves(ctx, filepath.Join(dir, e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// serves reports whether a process listens on a socket. Only a refused connection shows that
// none does: any other error may come from a server that is slow.
func serves(ctx context.Context, path string) bool {
	d := net.Dialer{Timeout: probeTimeout}
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist)
}
