package kubelet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/internal/unixgrpc"
)

// registerWithin bounds Register, in which the kubelet dials back for up to
// 10 s.
const registerWithin = 15 * time.Second

// stableAfter is how long a registration must hold for the next attempt to
// count as the first one.
const stableAfter = time.Minute

// keepRegistered registers whenever there is a kubelet that does not hold a
// registration of ours, until ctx ends.
func (p *Plugin) keepRegistered(ctx context.Context, changed <-chan struct{}) error {
	if err := p.removeStale(ctx); err != nil {
		p.log.Warn("stale sockets not removed, they are harmless", "err", err)
	}
	var (
		retry    backoff
		tried    identity
		reported string
	)
	for pause := time.Duration(0); ; pause = retry.next() {
		kubelet, err := p.awaitKubelet(ctx, tried, pause, changed)
		if err != nil {
			return nil // ctx ended
		}
		if kubelet != tried {
			tried, retry = kubelet, backoff{}
		}
		began := time.Now()
		err = p.serve(ctx, kubelet, changed)
		if ctx.Err() != nil {
			return nil
		}
		p.stands.Store(&Registration{Trouble: err.Error()})
		var lost *lostError
		switch held := errors.As(err, &lost); {
		case held:
			p.log.Warn("registration lost, registering again", "reason", err)
			reported = ""
		case err.Error() != reported:
			p.log.Warn("not registered, trying again until it works", "reason", err)
			reported = err.Error()
		default:
			p.log.Debug("not registered, trying again", "reason", err)
		}
		if (lost != nil && lost.fromOutside) || time.Since(began) > stableAfter {
			retry = backoff{}
		}
	}
}

// awaitKubelet waits until there is a kubelet to register with: for at least
// pause if it is the one that was tried last, and not at all if it is new.
func (p *Plugin) awaitKubelet(ctx context.Context, tried identity, pause time.Duration, changed <-chan struct{}) (identity, error) {
	paused := time.NewTimer(pause)
	defer paused.Stop()
	var reported bool
	for pausing := pause > 0; ; {
		kubelet, err := identify(p.kubeletSocket())
		if err == nil && (kubelet != tried || !pausing) {
			return kubelet, nil
		}
		if err != nil && !reported {
			reported = true
			p.stands.Store(&Registration{Trouble: fmt.Sprintf("waiting for the kubelet: %v", err)})
			p.log.Info("waiting for the kubelet", "reason", err)
		}
		select {
		case <-ctx.Done():
			return identity{}, ctx.Err()
		case <-changed:
		case <-paused.C:
			pausing = false
		}
	}
}

// register tells the kubelet about the server at endpoint, a file name in the
// directory of the kubelet's own socket. While it waits, the kubelet calls
// GetDevicePluginOptions there.
func (p *Plugin) register(ctx context.Context, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, registerWithin)
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
		Options:      options(),
	})
	if err != nil {
		s := status.Convert(err)
		return fmt.Errorf("registering with the kubelet at %s: %s: %s", p.kubeletSocket(), s.Code(), s.Message())
	}
	return nil
}

// backoff is the pauses between attempts: doubling from 100 ms to 10 s. Even
// the first is long enough for the kubelet of 1.36 to see the end of the old
// stream first; otherwise it would disconnect the new registration instead.
type backoff struct{ attempts int }

// next returns the next pause, longer by up to a quarter so that plugins that
// lost one kubelet do not come back at once.
func (b *backoff) next() time.Duration {
	pause := min(100*time.Millisecond<<min(b.attempts, 10), 10*time.Second)
	b.attempts++
	return pause + rand.N(pause/4)
}
