package dra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/internal/sockets"
	"github.com/gpucdi/gpucdi/internal/unixgrpc"
)

const (
	// infoTimeout bounds a request for the name of another driver. The kubelet uses the same timeout.
	infoTimeout = time.Second
	// maxQueried bounds the number of sockets that are queried.
	maxQueried = 16
)

// conflict returns the registration socket of another process that serves a driver of the same name; empty if there is
// none. own is the name of this process's socket; empty if it has none.
func (d *Driver) conflict(ctx context.Context, own string) (socket string, err error) {
	entries, err := os.ReadDir(d.registryDir())
	if err != nil {
		return "", fmt.Errorf("listing registered drivers: %w", err)
	}
	queried := 0
	for _, e := range entries {
		path := filepath.Join(d.registryDir(), e.Name())
		if e.Type() != fs.ModeSocket || e.Name() == own || !d.isRelevant(e.Name()) || queried == maxQueried || !sockets.HasListener(ctx, path) {
			continue
		}
		queried++
		if d.isSameDriver(ctx, path) {
			return path, nil
		}
	}
	return "", nil
}

// isSameDriver reports whether a process registers a DRA driver of the same name at a socket. A process that does not
// respond counts as one, because it may respond later.
func (d *Driver) isSameDriver(ctx context.Context, path string) bool {
	ctx, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	conn, err := unixgrpc.NewClient(path)
	if err != nil {
		return true
	}
	defer conn.Close()
	info, err := registerapi.NewRegistrationClient(conn).GetInfo(ctx, &registerapi.InfoRequest{})
	return err != nil || info.GetType() == registerapi.DRAPlugin && info.GetName() == d.cfg.Driver
}

// checkConflict returns an error if another process serves the driver, or if that cannot be checked.
func (d *Driver) checkConflict(ctx context.Context, own string) error {
	socket, err := d.conflict(ctx, own)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the kubelet may not have created the directory yet
		return err
	}
	if socket == "" {
		d.setConflict(NoConflict)
		return nil
	}
	d.setConflict(ConflictFound)
	return fmt.Errorf("another process serves DRA driver %s at %s; remove it from this node, or set another driver name",
		d.cfg.Driver, host.Printable(socket, maxMessage))
}

func (d *Driver) setConflict(c Conflict) {
	if d.registration.setConflict(c) {
		d.cfg.Changed()
	}
}

// reportConflict runs checkConflict while the driver is served. It reports the error in the registration state, logs it
// if it differs from last, and returns its message; empty if there is none. The driver stays registered: it must
// unprepare its claims when the other process is gone.
func (d *Driver) reportConflict(ctx context.Context, registration, last string) string {
	message := ""
	if err := d.checkConflict(ctx, filepath.Base(registration)); err != nil {
		message = err.Error()
	}
	d.registration.setWarning(message)
	switch {
	case message == "" || message == last:
	case d.Registration().Conflict == ConflictFound:
		d.log.Warn("DRA driver conflict, slices withdrawn", "err", message)
	default:
		d.log.Warn("DRA driver conflict check failed", "err", message)
	}
	return message
}
