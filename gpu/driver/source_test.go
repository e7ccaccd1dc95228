package driver

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/gpucdi/gpucdi/internal/host"
)

func TestDriverReplacedWhileWorkerStarts(t *testing.T) {
	// The first worker replaces the library before its probe cycle.
	cfg := scripted(t, `
		cd "$(dirname "$0")"
		if mkdir first; then touch new && mv new `+host.NVMLName+`; else touch second; fi
		sleep 0.1; echo '{"probes":{},"cycle":true}' >&4; sleep 600`)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	Run(ctx, cfg, nil, func(Report) {
		if _, err := cfg.Node.Stat("/second"); err == nil {
			cancel()
		}
	})
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Error("no second worker was started after the driver was replaced")
	}
}

// A worker that is killed is no failure of the driver, except before its first probe cycle.
func TestKilledWorker(t *testing.T) {
	for name, tc := range map[string]struct {
		script  string
		failure bool
	}{
		"SIGKILL after a cycle":  {`echo '{"probes":{"GPU-a":{}},"cycle":true}' >&4; sleep 0.1; kill -KILL $$`, false},
		"SIGKILL before a cycle": {`kill -KILL $$`, true},
		"exit":                   {`echo '{"probes":{"GPU-a":{}},"cycle":true}' >&4; exit 2`, true},
		"SIGTERM":                {`echo '{"probes":{"GPU-a":{}},"cycle":true}' >&4; sleep 0.1; kill -TERM $$`, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			var reports []Report
			Run(ctx, scripted(t, tc.script), nil, func(r Report) {
				if reports = append(reports, r); len(reports) == 3 {
					cancel()
				}
			})
			failure := slices.ContainsFunc(reports, func(r Report) bool { _, is := r.(Failure); return is })
			if len(reports) < 3 || failure != tc.failure {
				t.Errorf("got %+v, with a Failure: %t, want %t", reports, failure, tc.failure)
			}
		})
	}
}
