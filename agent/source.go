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
	// retryFirst is the backoff before a watch is restarted. It doubles up to retryLimit, and is reset after a
	// watch that has yielded a value and lasted for retryLimit.
	retryFirst = time.Second
	retryLimit = 10 * time.Second
)

// source calls yield with its initial value and with each update, until it fails or ctx ends. A source that returns nil
// before ctx ends is restarted, too.
type source[T any] func(ctx context.Context, yield func(T)) error

// update is the latest value of a source, or the error that prevents one.
type update[T any] struct {
	value T
	err   error
}

// changed is the value of sources that only signal a possible change.
type changed = struct{}

// follow returns a function that delivers the values of a source until ctx ends. It ignores the first failure after a
// value, because a directory may be in the middle of being replaced, or an API server may be restarting. It delivers
// and logs other errors unless they repeat the last one.
func follow[T any](watch source[T], updates chan update[T], log *slog.Logger, message string) func(ctx context.Context) {
	return func(ctx context.Context) {
		logged, tolerated, wait := "", false, retryFirst
		for ctx.Err() == nil {
			begin, yielded := time.Now(), false
			err := watch(ctx, func(value T) {
				logged, tolerated, yielded = "", true, true
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
				log.Warn(message, "err", gpu.OneLine(err))
				replace(updates, update[T]{err: err})
			}
			if yielded && time.Since(begin) >= retryLimit {
				wait = retryFirst
			}
			select {
			case <-ctx.Done():
			case <-time.After(cluster.Jittered(wait)):
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

// notify sends to a channel of capacity 1 unless it is full.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// replace sends to a channel of capacity 1, and drops a pending value. Only one goroutine may send.
func replace[T any](c chan T, value T) {
	select {
	case <-c:
	default:
	}
	c <- value
}
