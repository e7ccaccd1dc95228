package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/gpu"
)

const (
	// retryFirst is the time between the end of a watch and the next one. It doubles, up to
	// retryLimit, until a watch holds for that long.
	retryFirst = time.Second
	retryLimit = 10 * time.Second
)

// source calls yield with its initial value and with each update, until it fails or ctx
// ends. One that ends otherwise is watched again.
type source[T any] func(ctx context.Context, yield func(T)) error

// update is the latest of a source: a value, or why there is none now.
type update[T any] struct {
	value T
	err   error
}

// changed is the value of sources that report only that something may have changed.
type changed = struct{}

// follow returns what delivers the values of a source and each distinct error, which it also
// logs, until ctx ends. The first failure after a value is neither: a directory may be in the
// middle of being replaced, or an API server restarting.
func follow[T any](watch source[T], updates chan update[T], log *slog.Logger, failed string) func(ctx context.Context) {
	return func(ctx context.Context) {
		logged, tolerated, wait := "", false, retryFirst
		for ctx.Err() == nil {
			begin, held := time.Now(), false
			err := watch(ctx, func(value T) {
				logged, tolerated, held = "", true, true
				replace(updates, update[T]{value: value})
			})
			switch {
			case ctx.Err() != nil:
				return
			case err == nil:
			case tolerated:
				tolerated = false
			case err.Error() != logged:
				logged = err.Error()
				log.Warn(failed, "err", gpu.OneLine(err))
				replace(updates, update[T]{err: err})
			}
			if held && time.Since(begin) >= retryLimit {
				wait = retryFirst
			}
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
			wait = min(2*wait, retryLimit)
		}
	}
}

// watchSpec yields whenever the CDI directory may have changed.
func (a *Agent) watchSpec(ctx context.Context, yield func(changed)) error {
	return a.spec.Watch(ctx, func() { yield(changed{}) })
}

// watchConfig yields whenever the config file may have changed.
func (a *Agent) watchConfig(ctx context.Context, yield func(changed)) error {
	return config.Watch(ctx, a.cfg.ConfigFile, func() { yield(changed{}) })
}

// watchLabels yields the labels of the agent's Node.
func (a *Agent) watchLabels(client *cluster.Client) source[map[string]string] {
	return func(ctx context.Context, yield func(map[string]string)) error {
		return client.WatchLabels(ctx, a.cfg.NodeName, yield)
	}
}

// notify sends to a channel with room for one, unless a value is waiting there.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// replace makes value the one that the reader of a channel with room for one
// finds next. Only one goroutine may send.
func replace[T any](c chan T, value T) {
	select {
	case <-c:
	default:
	}
	c <- value
}
