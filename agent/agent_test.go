package agent_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpucdi/gpucdi/agent"
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
	a := agent.New(node(t), slog.New(slog.NewTextHandler(&log, nil)))
	go func() { done <- a.Run(ctx, reload) }()

	log.await(t, "no GPU to offer until a driver comes")
	log.await(t, "no container runtime answers yet")
	log.await(t, "waiting for the kubelet")
	log.await(t, "serving status and metrics")
	log.await(t, "no Kubernetes Events")
	reload <- struct{}{}
	log.await(t, "the driver is read again")
	end()
	if err := <-done; err != nil {
		t.Errorf("Run ended with %v", err)
	}
}

// An agent whose config is invalid from the start goes on, and takes up the config when it is
// fixed.
func TestAnInvalidConfigAtTheStart(t *testing.T) {
	var log record
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error)
	cfg := node(t)
	cfg.ConfigFile = filepath.Join(filepath.Dir(cfg.CDIDir), "config.yaml")
	write(t, cfg.ConfigFile, "misspelled: true")
	go func() { done <- agent.New(cfg, slog.New(slog.NewTextHandler(&log, nil))).Run(ctx, nil) }()
	log.await(t, "invalid config and no last known good, advertising nothing")
	log.await(t, "misspelled")
	write(t, cfg.ConfigFile, "health: {probeInterval: 2s}")
	log.await(t, "config changed")
	end()
	if err := <-done; err != nil {
		t.Errorf("Run ended with %v", err)
	}
}

// The kubelet swaps a link when a ConfigMap changes; the file itself is never
// touched.
func TestFollowsAConfigMap(t *testing.T) {
	var log record
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error)
	cfg := node(t)
	volume := t.TempDir()
	swap := func(version, text string) {
		t.Helper()
		dir := filepath.Join(volume, version)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "config.yaml"), text)
		if err := os.Symlink(version, filepath.Join(volume, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(volume, "..data_tmp"), filepath.Join(volume, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	swap("..1", "health: {probeInterval: 1s}")
	cfg.ConfigFile = filepath.Join(volume, "config.yaml")
	if err := os.Symlink("..data/config.yaml", cfg.ConfigFile); err != nil {
		t.Fatal(err)
	}
	go func() { done <- agent.New(cfg, slog.New(slog.NewTextHandler(&log, nil))).Run(ctx, nil) }()

	log.await(t, "no GPU to offer until a driver comes")
	swap("..2", "health: {probeInterval: often}\ncdi: {features: [gaming]}")
	log.await(t, "invalid config, keeping last known good")
	for _, problem := range []string{"often", "gaming"} {
		log.await(t, problem)
	}
	if strings.Contains(log.String(), "config changed") {
		t.Errorf("a wrong config was taken up: %s", log.String())
	}
	swap("..3", "health: {probeInterval: 2s}")
	log.await(t, "config changed")
	end()
	if err := <-done; err != nil {
		t.Errorf("Run ended with %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func node(t *testing.T) agent.Config {
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
		Listen:     "127.0.0.1:0",
		NFDDir:     filepath.Join(dir, "nfd"),
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

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

func (r *record) await(t *testing.T, part string) {
	t.Helper()
	var text string
	for start := time.Now(); time.Since(start) < 30*time.Second; time.Sleep(time.Millisecond) {
		if text = r.String(); strings.Contains(text, part) {
			return
		}
	}
	t.Fatalf("%q is not in\n%s", part, text)
}
