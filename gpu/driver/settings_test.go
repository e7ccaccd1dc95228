package driver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gpucdi/gpucdi/gpu"
)

const podCgroup = "/sys/fs/cgroup/kubepods/pod1"

// replier replies to each command.
type replier struct {
	s     *Settings
	reply func(Command) Reply
}

func (r replier) Write(line []byte) (int, error) {
	var c Command
	if err := json.Unmarshal(line, &c); err != nil {
		return 0, err
	}
	go func() {
		reply := r.reply(c)
		reply.ID = c.ID
		r.s.deliver(Reply{ID: c.ID + 1000}) // of no command
		r.s.deliver(reply)
	}()
	return len(line), nil
}

func TestSettings(t *testing.T) {
	var s Settings
	if _, err := s.MemoryLimit(t.Context(), "GPU-a", podCgroup); !errors.Is(err, errNoWorker) {
		t.Errorf("without a worker: %v", err)
	}
	s.attach(replier{&s, func(c Command) Reply {
		switch {
		case c.GPU != "GPU-a" || c.Cgroup != podCgroup:
			return Reply{Failed: "unexpected"}
		case c.Operation == SetMemoryLimit && c.Limit == gpu.MemoryUnlimited:
			return Reply{Failed: "not supported", Unsupported: true}
		}
		return Reply{Limit: 5}
	}})
	if got, err := s.MemoryLimit(t.Context(), "GPU-a", podCgroup); got != 5 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
	if err := s.SetMemoryLimit(t.Context(), "GPU-b", podCgroup, 1); err == nil || !strings.Contains(err.Error(), "set memory limit of GPU-b: unexpected") {
		t.Errorf("failed call: %v", err)
	}
	if err := s.SetMemoryLimit(t.Context(), "GPU-a", podCgroup, gpu.MemoryUnlimited); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("unsupported call: %v", err)
	}
	for _, cgroup := range []string{"", "/", "/sys/fs/cgroup", "/sys/fs/cgroup/../../etc", "/sys/fs/cgroup/a/", "kubepods"} {
		if err := s.SetMemoryLimit(t.Context(), "GPU-a", cgroup, 1); err == nil || !strings.Contains(err.Error(), "is not a cgroup below") {
			t.Errorf("cgroup %q: %v", cgroup, err)
		}
	}
	if err := s.SetMemoryLimit(t.Context(), "GPU-a", podCgroup+strings.Repeat("/a", CommandLimit), 1); err == nil || !strings.Contains(err.Error(), "more than the maximum") {
		t.Errorf("long path: %v", err)
	}
}

// A worker that does not reply blocks no caller, and no more than MaxCommands calls wait for it.
func TestSettingsWithoutReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Settings
		s.attach(io.Discard)
		failed := make(chan error)
		go func() {
			_, err := s.ComputeMode(t.Context(), "GPU-a")
			failed <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range MaxCommands - 1 {
			if _, err := s.ComputeMode(ctx, "GPU-a"); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		if err := s.SetComputeMode(t.Context(), "GPU-a", gpu.ComputeModeDefault); !errors.Is(err, errBusy) {
			t.Errorf("too many calls: %v", err)
		}
		s.detach()
		if err := <-failed; !errors.Is(err, errWorkerEnded) {
			t.Errorf("worker ended: %v", err)
		}
		if err := s.SetComputeMode(t.Context(), "GPU-a", gpu.ComputeModeDefault); !errors.Is(err, errNoWorker) {
			t.Errorf("after the worker has ended: %v", err)
		}
	})
}
