package agent

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A waiting agent gets the lock when the other one exits, unless it has stopped waiting.
func TestLockState(t *testing.T) {
	dir := t.TempDir()
	lock := func(ctx context.Context, waiting func(string)) func() {
		t.Helper()
		unlock, err := lockState(ctx, dir, waiting)
		if err != nil {
			t.Fatal(err)
		}
		return unlock
	}
	unlock := lock(t.Context(), func(string) { t.Error("waits for a lock that is free") })
	ended, end := context.WithCancel(t.Context())
	if _, err := lockState(ended, dir, func(string) { end() }); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled while waiting: error %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	reports := 0
	second := lock(ctx, func(string) {
		reports++
		time.AfterFunc(10*time.Millisecond, unlock)
	})
	if reports != 1 {
		t.Errorf("waiting was reported %d times, want 1", reports)
	}
	second()
	lock(ctx, func(string) {})()
}
