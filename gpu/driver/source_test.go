package driver

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

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
	Run(ctx, cfg, &Settings{}, nil, func(Report) {
		if _, err := cfg.Node.Stat("/second"); err == nil {
			cancel()
		}
	})
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Error("no second worker was started after the driver was replaced")
	}
}

// A killed worker is not a driver failure, unless it was killed before the end of its first probe cycle.
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
			Run(ctx, scripted(t, tc.script), &Settings{}, nil, func(r Report) {
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

// The steps that were blocked in a worker, see hung, are evidence only for the next worker: if that one crashes, the
// crash may have released the lock that blocked them.
func TestCrashClearsBlockedSteps(t *testing.T) {
	// pending INDEX START records a step about a GPU, pending since START ns after boot and therefore overdue.
	cfg := scripted(t, `
		pending() { printf "\\0$2\\0\\0\\0\\0\\0\\0\\0" | dd of=/proc/$$/fd/3 bs=8 seek=$((1+$1)) conv=notrunc status=none; }
		cd "$(dirname "$0")"
		if mkdir first; then
			echo '{"inventory":{"gpus":[{"uuid":"GPU-0"},{"uuid":"GPU-1","index":1},{"uuid":"GPU-2","index":2},{"uuid":"GPU-3","index":3}]}}' >&4
			pending 0 1; pending 1 2; sleep 600
		elif mkdir second; then pending 2 1; exit 3
		elif mkdir third; then pending 3 1; pending 1 2; sleep 600
		else echo '{"failed":"end"}' >&4; sleep 600; fi`)
	cfg.CallTimeout = 500 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var failed []string
	Run(ctx, cfg, &Settings{}, nil, func(r Report) {
		switch r := r.(type) {
		case Failure:
			failed = append(failed, r.GPU)
		case Snapshot:
			if r.Err != nil {
				cancel()
			}
		}
	})
	if want := []string{"GPU-0", "GPU-2", "GPU-3"}; !slices.Equal(failed, want) {
		t.Errorf("failures of %v, want %v", failed, want)
	}
}

// If the caller's context ends first, Read returns its error.
func TestReadEndsEarly(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if got := Read(ctx, scripted(t, "sleep 600")); !errors.Is(got.Err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want %v", got.Err, context.DeadlineExceeded)
	}
}
