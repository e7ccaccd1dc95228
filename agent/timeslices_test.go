package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
)

// The time slices of prepared claims are set once for each snapshot of the driver, also for the first one after the start
// of the agent. Only failures are repeated.
func TestTimeSlicesRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "claims", "uid-a.json")
		err := os.Mkdir(filepath.Dir(path), 0o700)
		if err == nil {
			err = os.WriteFile(path, []byte(`{"namespace":"default","name":"a","devices":[{"request":"gpu","name":"gpu-0","id":"GPU-0","timeSlice":"Long"}]}`), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		var (
			mu      sync.Mutex
			sets    []string
			failure error
		)
		set := func(_ context.Context, uuid string, slice gpu.TimeSlice) error {
			mu.Lock()
			defer mu.Unlock()
			sets = append(sets, uuid+"="+string(slice))
			return failure
		}
		c := &claims{driverRead: make(chan struct{}, 1)}
		log := slog.New(slog.DiscardHandler)
		c.driver = dra.New(dra.Config{Driver: "gpu.nvidia.com", Pool: "node", StateDir: dir, Gate: allocator.NewGate(time.Now), SetTimeSlice: set}, log)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.restoreTimeSlices(ctx) })
		a := New(Config{Node: host.NewRoot(t.TempDir()), CDIDir: t.TempDir()}, log)
		before := newSnapshot()
		before.claims = c
		check := func(read *driver.Snapshot, err error, wait time.Duration, want ...string) {
			t.Helper()
			mu.Lock()
			sets, failure = nil, err
			mu.Unlock()
			now := *before
			now.driver = read
			a.observe(before, &now)
			before = &now
			time.Sleep(wait)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(sets, want) {
				t.Errorf("set %v, want %v", sets, want)
			}
		}
		loaded := func() *driver.Snapshot { return &driver.Snapshot{Inventory: &gpu.Inventory{}} }
		check(nil, nil, time.Hour)
		check(&driver.Snapshot{Err: errors.New("no driver")}, nil, time.Hour)
		check(loaded(), nil, time.Hour, "GPU-0=Long")
		check(before.driver, nil, time.Hour)
		check(&driver.Snapshot{Err: errors.New("no driver")}, nil, time.Hour)
		check(loaded(), errors.New("nvidia-smi failed"), timeSliceRetry, "GPU-0=Long", "GPU-0=Long")
		check(before.driver, nil, time.Hour, "GPU-0=Long")
		cancel()
		running.Wait()
	})
}
