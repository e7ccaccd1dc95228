package driver

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/gpucdi/gpucdi/internal/host"
)

// A driver that is replaced right after a worker was started for the one before is read by another.
func TestDriverIsReplacedWhileAWorkerStarts(t *testing.T) {
	// The first worker replaces the library before its round.
	cfg := scripted(t, `
		cd "$(dirname "$0")"
		if mkdir first; then touch new && mv new `+host.NVMLName+`; else touch second; fi
		sleep 0.1; echo '{"probes":{},"round":true}' >&4; sleep 600`)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	Run(ctx, cfg, nil, func(Report) {
		if _, err := cfg.Node.Stat("/second"); err == nil {
			cancel()
		}
	})
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Error("the driver was replaced, and no second worker started")
	}
}

// A worker that somebody kills says nothing against the driver, unless none gets as far as a round.
func TestKilledWorker(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		blamed bool
	}{
		"after a round":     {`echo '{"probes":{"GPU-a":{}},"round":true}' >&4; sleep 0.1; kill -KILL $$`, false},
		"before a round":    {`kill -KILL $$`, true},
		"it ends by itself": {`echo '{"probes":{"GPU-a":{}},"round":true}' >&4; exit 2`, true},
		"it is told to end": {`echo '{"probes":{"GPU-a":{}},"round":true}' >&4; sleep 0.1; kill -TERM $$`, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var reports []Report
			Run(ctx, scripted(t, tc.script), nil, func(r Report) {
				if reports = append(reports, r); len(reports) == 3 {
					cancel()
				}
			})
			blamed := slices.ContainsFunc(reports, func(r Report) bool { _, is := r.(Trouble); return is })
			if len(reports) < 3 || blamed != tc.blamed {
				t.Errorf("reported is %+v, trouble among it: %t, want %t", reports, blamed, tc.blamed)
			}
		})
	}
}
