package driver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/gpu"
)

const podCgroup = "/sys/fs/cgroup/kubepods/pod1"

// unread is a pipe that nobody reads.
type unread struct{ io.Writer }

func (unread) SetWriteDeadline(time.Time) error { return nil }

// replier replies to each command.
type replier struct {
	s     *Settings
	reply func(Command) Reply
}

func (replier) SetWriteDeadline(time.Time) error { return nil }

func (r replier) Write(line []byte) (int, error) {
	var c Command
	if err := json.Unmarshal(line, &c); err != nil {
		return 0, err
	}
	go func() {
		reply := r.reply(c)
		reply.ID = c.ID
		r.s.deliver(Reply{ID: c.ID + 1000}) // a reply to no command
		r.s.deliver(reply)
	}()
	return len(line), nil
}

func TestSettings(t *testing.T) {
	var s Settings
	if _, _, err := s.MemoryLimit(t.Context(), "GPU-a", podCgroup); !errors.Is(err, ErrNoWorker) || !Temporary(err) {
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
	}}, true)
	if got, _, err := s.MemoryLimit(t.Context(), "GPU-a", podCgroup); got != 5 || err != nil {
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

// A full pipe blocks no caller for longer than writeTimeout, and no line is written partially.
func TestSettingsOfFullPipe(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer writer.Close()
	raw, err := writer.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var resized error
	if err := raw.Control(func(fd uintptr) { _, resized = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, os.Getpagesize()) }); err != nil || resized != nil {
		t.Fatal(err, resized)
	}
	var s Settings
	s.attach(writer, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	long := podCgroup + strings.Repeat("/a", CommandLimit/4)
	if _, _, err := s.MemoryLimit(ctx, "GPU-a", long); !errors.Is(err, context.Canceled) {
		t.Errorf("first command: %v", err)
	}
	if _, _, err := s.MemoryLimit(ctx, "GPU-a", long); !errors.Is(err, errNotRead) {
		t.Errorf("second command: %v", err)
	}
	writer.Close()
	written, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	var c Command
	if err := json.Unmarshal(written, &c); err != nil || c.Cgroup != long {
		t.Errorf("written: %d bytes, %v", len(written), err)
	}
}

// A worker without access to cgroups receives no commands about them.
func TestSettingsWithoutCgroups(t *testing.T) {
	var s Settings
	s.attach(unread{io.Discard}, false)
	if err := s.SetMemoryLimit(t.Context(), "GPU-a", podCgroup, 1); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}

// If the worker does not reply, calls return when their context or the worker ends, and at most MaxCommands commands
// are pending.
func TestSettingsWithoutReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Settings
		s.attach(unread{io.Discard}, true)
		failed := make(chan error)
		go func() {
			_, err := s.ComputeMode(t.Context(), "GPU-a")
			failed <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range MaxCommands - 1 {
			if _, err := s.ComputeMode(ctx, "GPU-a"); !errors.Is(err, context.Canceled) || !Temporary(err) {
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
		if err := s.SetComputeMode(t.Context(), "GPU-a", gpu.ComputeModeDefault); !errors.Is(err, ErrNoWorker) {
			t.Errorf("after the worker has ended: %v", err)
		}
	})
}
