package dra

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthalpha "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpucdi/gpucdi/internal/sockets"
)

const (
	// retryInterval is the pause between sessions, so that a process that removes each new socket does not keep the agent
	// busy. The kubelet processes new sockets once a second.
	retryInterval = time.Second
	// stopTimeout bounds the graceful stop of a server.
	stopTimeout = time.Second
	// maxCalls bounds the concurrent calls on one connection. Each pod that waits for a device takes one, and must not
	// delay the others.
	maxCalls = 1024
	// maxRequest bounds a request, in bytes.
	maxRequest = 1 << 20
)

// keepRegistered starts a session, and another one whenever a session ends, until ctx ends.
func (d *Driver) keepRegistered(ctx context.Context, changed <-chan struct{}) {
	logged := ""
	for {
		err := d.session(ctx, changed)
		if ctx.Err() != nil {
			d.registration.begin(nil, "stopped")
			return
		}
		if d.registration.wasRegistered() {
			logged = ""
		}
		d.registration.begin(nil, err.Error())
		if err.Error() != logged {
			logged = err.Error()
			d.log.Warn("not registered, will retry", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryInterval):
		}
	}
}

// session serves the driver on new sockets until one of them is removed, the kubelet does not register it in time, or
// ctx ends. The error is the reason. The servers have stopped when it returns.
func (d *Driver) session(ctx context.Context, changed <-chan struct{}) error {
	if err := d.removeStaleSockets(ctx); err != nil {
		d.log.Warn("stale sockets not removed", "err", err)
	}
	if err := d.checkConflict(ctx, ""); err != nil {
		return err
	}
	if _, err := os.Stat(d.registryDir()); err != nil {
		return fmt.Errorf("waiting for the kubelet: %w", err)
	}
	if err := os.MkdirAll(d.pluginDir(), pluginMode); err != nil {
		return fmt.Errorf("creating the driver's directory: %w", err)
	}
	registration, service := d.socketPaths()
	r := &registrar{driver: d, service: filepath.Base(service), changed: make(chan struct{}, 1), log: d.log.With("socket", registration)}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	run, ctx := errgroup.WithContext(ctx)
	d.registration.begin(r, "the kubelet has not registered it yet")
	// The service socket comes first: the kubelet connects to it as soon as it finds the registration socket.
	owned := ownedSockets{}
	for _, server := range []struct {
		path string
		*grpc.Server
	}{{service, d.serviceServer(ctx, r)}, {registration, registrationServer(r)}} {
		id, err := serve(ctx, run, server.path, server.Server)
		if err != nil {
			cancel()
			return errors.Join(err, run.Wait())
		}
		owned[server.path] = id
	}
	run.Go(func() error { return d.awaitLoss(ctx, r, registration, owned, changed) })
	return run.Wait()
}

// serviceServer returns the server of the driver's calls.
func (d *Driver) serviceServer(ctx context.Context, r *registrar) *grpc.Server {
	g := grpc.NewServer(grpc.WaitForHandlers(true), grpc.StatsHandler(r), grpc.MaxConcurrentStreams(maxCalls), grpc.MaxRecvMsgSize(maxRequest))
	drapb.RegisterDRAPluginServer(g, &service{driver: d, running: ctx})
	watch := &healthServer{streams: &healthStreams{driver: d, running: ctx}}
	health.RegisterDRAResourceHealthServer(g, watch)
	healthalpha.RegisterDRAResourceHealthServer(g, health.V1ServerWrapper{Server: watch}) // for kubelet 1.36
	return g
}

func registrationServer(r *registrar) *grpc.Server {
	g := grpc.NewServer(grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(maxRequest))
	registerapi.RegisterRegistrationServer(g, r)
	return g
}

// serve listens on a new socket, which it removes when ctx ends and the server stops.
func serve(ctx context.Context, run *errgroup.Group, path string, g *grpc.Server) (sockets.Identity, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return sockets.Identity{}, fmt.Errorf("listening: %w", err)
	}
	id, err := sockets.Identify(path)
	if err != nil {
		return sockets.Identity{}, errors.Join(fmt.Errorf("inspecting the new socket: %w", err), listener.Close())
	}
	run.Go(func() error {
		if err := g.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serving on %s: %w", path, err)
		}
		return nil
	})
	run.Go(func() error {
		<-ctx.Done()
		force := time.AfterFunc(stopTimeout, g.Stop)
		defer force.Stop()
		g.GracefulStop()
		return nil
	})
	return id, nil
}

// ownedSockets are the sockets of a session, by path.
type ownedSockets map[string]sockets.Identity

// check returns an error if a socket was removed or replaced.
func (o ownedSockets) check() error {
	for path, id := range o {
		if now, err := sockets.Identify(path); err != nil || now != id {
			return fmt.Errorf("socket %s removed", path)
		}
	}
	return nil
}

// awaitLoss waits until the session is lost or ctx ends, and returns the reason.
func (d *Driver) awaitLoss(ctx context.Context, r *registrar, registration string, owned ownedSockets, changed <-chan struct{}) error {
	overdue, recheck := time.NewTimer(d.registerTimeout), time.NewTicker(d.conflictInterval)
	defer overdue.Stop()
	defer recheck.Stop()
	registered, conflict := false, ""
	// settled means that a conflict check was made a while after the last change: a process creates its socket before it
	// listens on it.
	settled := false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			if err := owned.check(); err != nil {
				return err
			}
			conflict, settled = d.reportConflict(ctx, registration, conflict), false
		case <-recheck.C:
			if conflict != "" || !settled {
				conflict, settled = d.reportConflict(ctx, registration, conflict), true
			}
		case <-r.changed:
			now := !d.Registration().Since.IsZero()
			if registered && !now {
				overdue.Reset(d.registerTimeout)
			}
			registered = now
		case <-overdue.C:
			// The kubelet may have missed the socket. The next session creates a new one.
			if !registered {
				return fmt.Errorf("the kubelet did not register the driver within %s; check that it runs and that its root directory is %s",
					d.registerTimeout, d.cfg.KubeletDir)
			}
		}
	}
}
