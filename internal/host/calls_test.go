package host_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Do returns when ctx ends, even if the call does not. Further calls with the same key fail until the call has returned.
func TestCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls host.Calls
		failure := errors.New("exit status 1")
		if err := calls.Do(t.Context(), "a", func() error { return failure }); !errors.Is(err, failure) {
			t.Errorf("error %v, want %v", err, failure)
		}
		late := errors.New("no response within 1s")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, late)
		defer cancel()
		end := make(chan struct{})
		if err := calls.Do(ctx, "a", func() error { <-end; return nil }); !errors.Is(err, late) {
			t.Errorf("error %v, want %v", err, late)
		}
		succeed := func() error { return nil }
		if err := calls.Do(t.Context(), "a", succeed); !errors.Is(err, host.ErrNotExited) {
			t.Errorf("error %v, want %v", err, host.ErrNotExited)
		}
		if err := calls.Do(t.Context(), "b", succeed); err != nil {
			t.Error(err)
		}
		close(end)
		synctest.Wait()
		if err := calls.Do(t.Context(), "a", succeed); err != nil {
			t.Error(err)
		}
	})
}
