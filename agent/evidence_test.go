package agent

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/internal/host"
)

// After firstResponseTimeout the agent proceeds without a container runtime, but never without a slow one, whose
// containers may hold devices.
func TestSlowRuntimeIsNotAbsent(t *testing.T) {
	c := collector{cfg: Config{Node: host.NewRoot(t.TempDir())}, log: slog.New(slog.DiscardHandler), started: time.Now()}
	if _, err := c.containers(t.Context()); err == nil {
		t.Error("the runtime is skipped before firstResponseTimeout")
	}
	c.started = time.Now().Add(-2 * firstResponseTimeout)
	expired, cancel := context.WithCancel(t.Context())
	cancel()
	if response, err := c.containers(expired); err == nil {
		t.Errorf("after the deadline: got %+v, want an error", response)
	}
	if response, err := c.containers(t.Context()); err != nil || len(response.Devices) > 0 || response.asked.IsZero() {
		t.Errorf("without a runtime: %+v, %v", response, err)
	}
	c.runtimes.answered = true
	if _, err := c.containers(t.Context()); err == nil {
		t.Error("a runtime that has responded before is skipped")
	}
}
