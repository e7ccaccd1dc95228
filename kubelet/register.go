package kubelet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/internal/sockets"
	"github.com/gpucdi/gpucdi/internal/unixgrpc"
)

// registerTimeout bounds Register, during which the kubelet dials back for up to 10 s.
const registerTimeout = 15 * time.Second

// stableAfter is the age at which a registration resets the backoff.
const stableAfter = time.Minute

// keepRegistered registers with the kubelet, and again after each restart of the kubelet and each lost registration,
// until ctx ends.
func (p *Plugin) keepRegistered(ctx context.Context, changed <-chan struct{}) error {
	defer p.registration.Store(&Registration{Error: "stopped"})
	if err := p.removeStaleSockets(ctx); err != nil {
		p.log.Warn("stale sockets not removed", "err", err)
	}
	var (
		retry  backoff
		tried  sockets.Identity
		logged string
	)
	for pause := time.Duration(0); ; pause = retry.next() {
		kubelet, err := p.awaitKubelet(ctx, tried, pause, changed)
		if err != nil {
			return nil // ctx ended
		}
		if kubelet != tried {
			tried, retry = kubelet, backoff{}
		}
		start := time.Now()
		err = p.serve(ctx, kubelet, changed)
		if ctx.Err() != nil {
			return nil
		}
		p.registration.Store(&Registration{Error: err.Error()})
		var lost *lostError
		switch registered := errors.As(err, &lost); {
		case registered:
			p.log.Warn("registration lost, will retry", "err", err)
			logged = ""
		case err.Error() != logged:
			p.log.Warn("registration failed, will retry", "err", err)
			logged = err.Error()
		default:
			p.log.Debug("registration failed again, will retry", "err", err)
		}
		if (lost != nil && lost.resetBackoff) || time.Since(start) > stableAfter {
			retry = backoff{}
		}
	}
}

// awaitKubelet waits for the socket of the kubelet. It returns a socket other than tried immediately, and tried after
// pause.
func (p *Plugin) awaitKubelet(ctx context.Context, tried sockets.Identity, pause time.Duration, changed <-chan struct{}) (sockets.Identity, error) {
	paused := time.NewTimer(pause)
	defer paused.Stop()
	var logged bool
	for pausing := pause > 0; ; {
		kubelet, err := sockets.Identify(p.kubeletSocket())
		if err == nil && (kubelet != tried || !pausing) {
			return kubelet, nil
		}
		if err != nil && !logged {
			logged = true
			p.registration.Store(&Registration{Error: fmt.Sprintf("waiting for kubelet: %v", err)})
			p.log.Info("waiting for kubelet", "err", err)
		}
		select {
		case <-ctx.Done():
			return sockets.Identity{}, ctx.Err()
		case <-changed:
		case <-paused.C:
			pausing = false
		}
	}
}

// register registers the server at endpoint, a file name in the directory of the kubelet's socket. Before it
// returns, the kubelet calls GetDevicePluginOptions on that server.
func (p *Plugin) register(ctx context.Context, endpoint string, options *api.DevicePluginOptions) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	conn, err := unixgrpc.NewClient(p.kubeletSocket())
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = api.NewRegistrationClient(conn).Register(ctx, &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     endpoint,
		ResourceName: p.cfg.Resource,
		Options:      options,
	})
	if err != nil {
		s := status.Convert(err)
		return fmt.Errorf("registering with the kubelet at %s: %s: %s", p.kubeletSocket(), s.Code(), s.Message())
	}
	return nil
}

// backoff computes the pauses between attempts, which double from 100 ms to 10 s. Even the first one is
// long enough for kubelet 1.36 to process the end of the old stream; otherwise it would drop the new registration.
type backoff struct{ attempts int }

// next returns the next pause. Up to 25 % of jitter keeps the plugins of a node from registering at the same time.
func (b *backoff) next() time.Duration {
	pause := min(100*time.Millisecond<<min(b.attempts, 10), 10*time.Second)
	b.attempts++
	return pause + rand.N(pause/4)
}
