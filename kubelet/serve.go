package kubelet

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
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/internal/sockets"
)

// stopTimeout bounds the graceful stop of a server.
const stopTimeout = time.Second

// maxCalls bounds the concurrent calls on one connection. Each container that waits in PreStartContainer takes one, and
// must not prevent Allocate, which has no deadline and blocks the kubelet.
const maxCalls = 1024

// lostError is the loss of a registration that the kubelet had accepted.
type lostError struct {
	reason string

	// resetBackoff is set if the kubelet did not reject the plugin: a socket was removed or replaced, or PreStartRequired
	// has changed.
	resetBackoff bool
}

func (e *lostError) Error() string { return e.reason }

// serve starts a server on a new socket, registers it with the kubelet, and runs it until the registration is lost or
// ctx ends. It always returns an error with the reason: a *lostError if the registration was lost. The server has
// stopped when serve returns.
func (p *Plugin) serve(ctx context.Context, kubelet sockets.Identity, changed <-chan struct{}) error {
	listener, err := p.listen(ctx)
	if err != nil {
		return err
	}
	path := p.socket
	own, err := sockets.Identify(path)
	if err != nil {
		return errors.Join(fmt.Errorf("inspecting the new socket: %w", err), listener.Close())
	}
	s := newServer(p)
	g := grpc.NewServer(grpc.WaitForHandlers(true), grpc.UnaryInterceptor(p.observe), grpc.MaxConcurrentStreams(maxCalls))
	api.RegisterDevicePluginServer(g, s)

	run, ctx := errgroup.WithContext(ctx)
	run.Go(func() error {
		if err := g.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serving on %s: %w", path, err)
		}
		return nil
	})
	run.Go(func() error {
		defer s.stop(g)
		if err := p.register(ctx, filepath.Base(path), s.options()); err != nil {
			return err
		}
		p.registration.Store(&Registration{Since: time.Now()})
		p.cfg.Observer.Registered(p.cfg.Resource)
		p.log.Info("registered with kubelet", "socket", path)
		return p.awaitLoss(ctx, s, dependencies{kubelet: kubelet, own: own, ownPath: path}, changed)
	})
	return run.Wait()
}

// listen listens on a new socket and then removes the previous one, so that an agent leaves a socket behind whenever
// it ends.
func (p *Plugin) listen(ctx context.Context) (net.Listener, error) {
	path := p.socketPath()
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if p.socket != "" {
		_ = os.Remove(p.socket) // the kubelet may have removed it; a stale one is harmless
	}
	p.socket = path
	return listener, nil
}

// stop ends the streams, stops listening, and waits for pending calls. After stopTimeout it closes all connections.
func (s *server) stop(g *grpc.Server) {
	close(s.stopping)
	force := time.AfterFunc(stopTimeout, g.Stop)
	defer force.Stop()
	g.GracefulStop()
}

// dependencies are the sockets that a registration depends on.
type dependencies struct {
	kubelet sockets.Identity // the kubelet's registration socket
	own     sockets.Identity // the plugin's socket at ownPath
	ownPath string
}

// awaitLoss waits until the registration is lost or ctx ends, and returns the reason.
func (p *Plugin) awaitLoss(ctx context.Context, s *server, on dependencies, changed <-chan struct{}) error {
	overdue := time.NewTimer(p.streamTimeout)
	defer overdue.Stop()
	check := time.NewTicker(p.checkInterval)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			if err := p.checkSockets(on); err != nil {
				return err
			}
		case <-s.streams.changed:
			if s.streams.opened.Load() > 0 && s.streams.open.Load() == 0 {
				return &lostError{reason: "kubelet closed the ListAndWatch stream"}
			}
		case <-overdue.C:
			if s.streams.opened.Load() == 0 {
				return &lostError{reason: fmt.Sprintf("kubelet opened no ListAndWatch stream within %s", p.streamTimeout)}
			}
		case <-check.C:
			if err := s.health.periodic(ctx); err != nil {
				return err
			}
		case err := <-s.lost:
			return err
		}
	}
}

// checkSockets returns a *lostError if the plugin's socket has been removed or replaced, or the kubelet's replaced.
func (p *Plugin) checkSockets(on dependencies) error {
	if own, err := sockets.Identify(on.ownPath); err != nil || own != on.own {
		return &lostError{reason: "socket " + on.ownPath + " removed", resetBackoff: true}
	}
	// A missing kubelet socket is not conclusive: if the kubelet has ended, so has its ListAndWatch stream.
	if kubelet, err := sockets.Identify(p.kubeletSocket()); err == nil && kubelet != on.kubelet {
		return &lostError{reason: "kubelet restarted", resetBackoff: true}
	}
	return nil
}
