package agent

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/internal/host"
)

// A container runtime that is not there is done without after a while; one that is slow never is, since
// its containers may have devices.
func TestASlowRuntimeIsNotAbsent(t *testing.T) {
	w := witness{cfg: Config{Node: host.NewRoot(t.TempDir())}, log: slog.New(slog.DiscardHandler), started: time.Now()}
	if _, err := w.containers(t.Context()); err == nil {
		t.Error("the runtime is done without at once")
	}
	w.started = time.Now().Add(-2 * firstAnswer)
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if answer, err := w.containers(late); err == nil {
		t.Errorf("beyond the deadline the answer is %+v", answer)
	}
	if answer, err := w.containers(t.Context()); err != nil || len(answer.Devices) > 0 || answer.asked.IsZero() {
		t.Errorf("without a runtime: %+v, %v", answer, err)
	}
	w.runtimes.answered = true
	if _, err := w.containers(t.Context()); err == nil {
		t.Error("a runtime that has answered before is done without")
	}
}
