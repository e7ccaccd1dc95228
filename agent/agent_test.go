package agent_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpucdi/gpucdi/agent"
	"github.com/gpucdi/gpucdi/internal/config"
	"github.com/gpucdi/gpucdi/internal/host"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A node that has nothing yet, neither driver nor kubelet nor runtime, is one
// to wait on, and to leave without a trace.
func TestWaitsOnAnEmptyNode(t *testing.T) {
	var log record
	ctx, end := context.WithCancel(t.Context())
	reload := make(chan struct{})
	done := make(chan error)
	loads := 0
	a := agent.New(node(t, func() (config.Config, error) {
		loads++
		if loads > 1 {
			return config.Config{}, errors.New("misspelled")
		}
		return config.Default(), nil
	}), slog.New(slog.NewTextHandler(&log, nil)))
	go func() { done <- a.Run(ctx, reload) }()

	log.await(t, "no GPU to offer until a driver comes")
	log.await(t, "no container runtime answers yet")
	log.await(t, "waiting for the kubelet")
	reload <- struct{}{}
	log.await(t, "keeping the config as it was")
	end()
	if err := <-done; err != nil {
		t.Errorf("Run ended with %v", err)
	}
}

func TestAWrongConfigAtTheStartIsAnError(t *testing.T) {
	wrong := errors.New("misspelled")
	a := agent.New(node(t, func() (config.Config, error) { return config.Config{}, wrong }), slog.New(slog.DiscardHandler))
	if err := a.Run(t.Context(), nil); !errors.Is(err, wrong) {
		t.Errorf("Run ended with %v", err)
	}
}

func node(t *testing.T, load func() (config.Config, error)) agent.Config {
	t.Helper()
	// Not t.TempDir: with the test's name in it, sockets' paths get too long.
	dir, err := os.MkdirTemp("", "node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return agent.Config{
		Node:       host.NewRoot(dir),
		KubeletDir: filepath.Join(dir, "kubelet"),
		CDIDir:     filepath.Join(dir, "cdi"),
		Load:       load,
		Worker:     "false",
	}
}

// record is a log that can be waited on.
type record struct {
	mu   sync.Mutex
	text strings.Builder
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) await(t *testing.T, part string) {
	t.Helper()
	var text string
	for start := time.Now(); time.Since(start) < 30*time.Second; time.Sleep(time.Millisecond) {
		r.mu.Lock()
		text = r.text.String()
		r.mu.Unlock()
		if strings.Contains(text, part) {
			return
		}
	}
	t.Fatalf("%q is not in\n%s", part, text)
}
