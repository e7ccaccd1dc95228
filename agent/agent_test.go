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
	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/agent"
	"github.com/gpucdi/gpucdi/internal/host"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// On a node without a driver, a kubelet or a container runtime, the agent waits for them. It exits without leaking
// goroutines.
func TestEmptyNode(t *testing.T) {
	var log logBuffer
	ctx, end := context.WithCancel(t.Context())
	reload := make(chan struct{})
	done := make(chan error)
	a := agent.New(emptyNode(t), slog.New(slog.NewTextHandler(&log, nil)))
	go func() { done <- a.Run(ctx, reload) }()

	log.await(t, "driver not found, waiting for it")
	log.await(t, "container runtime not detected, will retry")
	log.await(t, "waiting for kubelet")
	log.await(t, "serving status and metrics")
	log.await(t, "no API server access")
	reload <- struct{}{}
	log.await(t, "reload requested")
	end()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// An agent that starts with an invalid config keeps running, and loads the config once it is fixed.
func TestInvalidConfigAtStart(t *testing.T) {
	var log logBuffer
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error)
	cfg := emptyNode(t)
	cfg.ConfigFile = filepath.Join(filepath.Dir(cfg.CDIDir), "config.yaml")
	write(t, cfg.ConfigFile, "misspelled: true")
	go func() { done <- agent.New(cfg, slog.New(slog.NewTextHandler(&log, nil))).Run(ctx, nil) }()
	log.await(t, "invalid config and no last known good, all devices unhealthy")
	log.await(t, "misspelled")
	write(t, cfg.ConfigFile, "health: {probeInterval: 2s}")
	log.await(t, "config changed")
	end()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// An agent that exits while it waits for another one leaves the node unchanged.
func TestEndWhileWaiting(t *testing.T) {
	cfg := emptyNode(t)
	dir := filepath.Dir(cfg.CDIDir)
	cfg.StateDir, cfg.ConfigFile = filepath.Join(dir, "state"), filepath.Join(dir, "config.yaml")
	if err := os.Mkdir(cfg.StateDir, 0o700); err != nil {
		t.Fatal(err)
	}
	const served = "health: {probeInterval: 1s}"
	saved := filepath.Join(cfg.StateDir, "config.yaml")
	write(t, saved, served)
	write(t, cfg.ConfigFile, "health: {probeInterval: 2s}")
	lock, err := os.Create(filepath.Join(cfg.StateDir, "agent.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	var log logBuffer
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- agent.New(cfg, slog.New(slog.NewTextHandler(&log, nil))).Run(ctx, nil) }()
	log.await(t, "another gpucdi agent serves this node")
	end()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if text, err := os.ReadFile(saved); err != nil || string(text) != served {
		t.Errorf("last known good config: %q, %v; want %q", text, err, served)
	}
	if strings.Contains(log.String(), "waiting for kubelet") {
		t.Errorf("a device plugin was started:\n%s", log.String())
	}
}

// The kubelet updates a ConfigMap volume by replacing the symlink ..data. The symlink config.yaml never
// changes.
func TestConfigMapUpdate(t *testing.T) {
	var log logBuffer
	ctx, end := context.WithCancel(t.Context())
	done := make(chan error)
	cfg := emptyNode(t)
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

	log.await(t, "driver not found, waiting for it")
	swap("..2", "health: {probeInterval: often}\ncdi: {features: [gaming]}")
	log.await(t, "invalid config, keeping last known good")
	for _, problem := range []string{"often", "gaming"} {
		log.await(t, problem)
	}
	if strings.Contains(log.String(), "config changed") {
		t.Errorf("an invalid config was loaded:\n%s", log.String())
	}
	swap("..3", "health: {probeInterval: 2s}")
	log.await(t, "config changed")
	end()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func emptyNode(t *testing.T) agent.Config {
	t.Helper()
	// Not t.TempDir, whose path contains the test name and is too long for sockets.
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

// logBuffer is a log that tests can wait on.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (b *logBuffer) await(t *testing.T, part string) {
	t.Helper()
	var text string
	for start := time.Now(); time.Since(start) < 30*time.Second; time.Sleep(time.Millisecond) {
		if text = b.String(); strings.Contains(text, part) {
			return
		}
	}
	t.Fatalf("%q not logged:\n%s", part, text)
}
