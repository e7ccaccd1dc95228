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
)

// stopWithin bounds how long the end of a server waits for its peer.
const stopWithin = time.Second

// maxCalls bounds the calls in progress on one connection; the kubelet makes a few.
const maxCalls = 64

// lostError says why a registration that the kubelet had accepted holds no
// longer.
type lostError struct {
	reason string

	// fromOutside: a socket changed, which is no sign of a kubelet that does
	// not want us.
	fromOutside bool
}

func (e *lostError) Error() string { return e.reason }

// serve starts a server on a socket of its own, registers it with the kubelet
// and keeps it until the registration is lost or ctx ends; the reason is the
// error. The server is gone when it returns.
func (p *Plugin) serve(ctx context.Context, kubelet identity, changed <-chan struct{}) error {
	listener, err := p.listen(ctx)
	if err != nil {
		return err
	}
	path := p.socket
	own, err := identify(path)
	if err != nil {
		return errors.Join(fmt.Errorf("looking at the new socket: %w", err), listener.Close())
	}
	s := newServer(p)
	g := grpc.NewServer(grpc.WaitForHandlers(true), grpc.UnaryInterceptor(p.observe), grpc.MaxConcurrentStreams(maxCalls))
	api.RegisterDevicePluginServer(g, s)

	run, ctx := errgroup.WithContext(ctx)
	run.Go(func() error {
		if err := g.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serving at %s: %w", path, err)
		}
		return nil
	})
	run.Go(func() error {
		defer s.stop(g)
		if err := p.register(ctx, filepath.Base(path)); err != nil {
			return err
		}
		p.stands.Store(&Registration{Since: time.Now()})
		p.cfg.Observer.Registered(p.cfg.Resource)
		p.log.Info("registered with the kubelet", "socket", path)
		return p.hold(ctx, s, held{kubelet: kubelet, own: own, path: path}, changed)
	})
	return run.Wait()
}

// listen listens on a new socket, and only then removes the one before: an agent that
// ends at any time leaves one behind.
func (p *Plugin) listen(ctx context.Context) (net.Listener, error) {
	path := p.socketPath()
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if p.socket != "" {
		_ = os.Remove(p.socket) // the kubelet may have; otherwise it is harmless
	}
	p.socket = path
	return listener, nil
}

// stop ends the streams, lets calls that are under way finish, and stops
// listening. A peer that does not play along is cut off.
func (s *server) stop(g *grpc.Server) {
	close(s.stopping)
	cut := time.AfterFunc(stopWithin, g.Stop)
	defer cut.Stop()
	g.GracefulStop()
}

// held is what a registration hangs on.
type held struct {
	kubelet identity // the socket it was made at
	own     identity // our socket, at path
	path    string
}

// hold waits until the registration is lost.
func (p *Plugin) hold(ctx context.Context, s *server, h held, changed <-chan struct{}) error {
	overdue := time.NewTimer(p.streamWithin)
	defer overdue.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			if own, err := identify(h.path); err != nil || own != h.own {
				return &lostError{reason: "our socket " + h.path + " was removed", fromOutside: true}
			}
			// A socket that is gone says nothing: the stream ends with its kubelet.
			if kubelet, err := identify(p.kubeletSocket()); err == nil && kubelet != h.kubelet {
				return &lostError{reason: "the kubelet was restarted", fromOutside: true}
			}
		case <-s.streams.changed:
			if s.streams.opened.Load() > 0 && s.streams.open.Load() == 0 {
				return &lostError{reason: "the kubelet ended the ListAndWatch stream"}
			}
		case <-overdue.C:
			if s.streams.opened.Load() == 0 {
				return &lostError{reason: fmt.Sprintf("the kubelet did not ask for the devices within %s", p.streamWithin)}
			}
		}
	}
}
