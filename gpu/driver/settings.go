package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Settings reads and changes settings of GPUs through the driver worker of Run. Its methods are safe for concurrent
// use. They return soon after ctx ends, even if the driver hangs; the call may still take effect later. They fail while
// no worker runs, for example during a driver upgrade. All calls are idempotent, so a failed one can be repeated. The
// error wraps errors.ErrUnsupported if the GPU or the driver does not support the setting.
//
// A GPU without persistence mode loses its compute mode when its last client ends, for example when the worker is
// replaced.
type Settings struct {
	mu          sync.Mutex
	worker      commandPipe // nil while no worker runs
	limitMemory bool        // the worker has access to the node's cgroups
	last        uint64      // ID of the latest command
	pending     map[uint64]chan<- Reply
}

// commandPipe is the write end of the worker's standard input.
type commandPipe interface {
	io.Writer
	SetWriteDeadline(t time.Time) error
}

// writeTimeout bounds how long a command waits for the worker to read earlier ones if the pipe is full. The kernel may
// limit a pipe to one page.
const writeTimeout = time.Second

// ErrNoWorker means that a setting can be changed when the driver worker runs again.
var ErrNoWorker = errors.New("no driver is loaded, or its worker is being restarted; retry")

var (
	errNotEnabled  = fmt.Errorf("%w: memory limits are not enabled in the config", errors.ErrUnsupported)
	errNotRead     = fmt.Errorf("the driver worker has not read earlier commands within %s; retry", writeTimeout)
	errWorkerEnded = errors.New("the driver worker ended before it replied; retry")
	errNoReply     = errors.New("waiting for the driver")
	errBusy        = fmt.Errorf("%d earlier calls have not returned; retry, and if this persists, check the kernel log", MaxCommands)
)

// Temporary reports whether a call of Settings failed because the worker was absent or busy, perhaps with another GPU, so
// that a retry may succeed soon. A GPU that does not respond gets a fault of its own.
func Temporary(err error) bool {
	return slices.ContainsFunc([]error{ErrNoWorker, errNotRead, errWorkerEnded, errNoReply, errBusy}, func(e error) bool { return errors.Is(err, e) })
}

// LimitsMemory reports whether a worker is running and can limit memory.
func (s *Settings) LimitsMemory() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.worker != nil && s.limitMemory
}

// SetMemoryLimit limits the memory in bytes that the processes of a cgroup and its descendants can allocate on a GPU,
// and verifies that the driver reports that limit, perhaps rounded down by less than gpu.MinMemoryLimit. A limit below
// gpu.MinMemoryLimit is an error, and gpu.MemoryUnlimited removes the limit. cgroup is the path of its directory on the
// node. CUDA's managed memory is not limited.
func (s *Settings) SetMemoryLimit(ctx context.Context, uuid, cgroup string, limit uint64) error {
	_, err := s.memoryLimit(ctx, Command{GPU: uuid, Operation: SetMemoryLimit, Cgroup: cgroup, Limit: limit})
	return err
}

// MemoryLimit returns a cgroup's own limit and its memory usage, in bytes. Limits of its ancestors are not considered.
// Without a limit it returns gpu.MemoryUnlimited, and the usage is unknown. cgroup is the path of its directory on the
// node.
func (s *Settings) MemoryLimit(ctx context.Context, uuid, cgroup string) (limit, used uint64, err error) {
	reply, err := s.memoryLimit(ctx, Command{GPU: uuid, Operation: GetMemoryLimit, Cgroup: cgroup})
	return reply.Limit, reply.Used, err
}

func (s *Settings) memoryLimit(ctx context.Context, c Command) (Reply, error) {
	if path.Clean(c.Cgroup) != c.Cgroup || !strings.HasPrefix(c.Cgroup, host.CgroupDir+"/") {
		return Reply{}, fmt.Errorf("%s: %q is not a cgroup below %s", c.Operation, c.Cgroup, host.CgroupDir)
	}
	return s.call(ctx, c)
}

// SetComputeMode sets the compute mode of a GPU, and verifies that the driver reports that mode.
func (s *Settings) SetComputeMode(ctx context.Context, uuid string, mode gpu.ComputeMode) error {
	_, err := s.call(ctx, Command{GPU: uuid, Operation: SetComputeMode, Mode: mode})
	return err
}

// ComputeMode returns the compute mode of a GPU.
func (s *Settings) ComputeMode(ctx context.Context, uuid string) (gpu.ComputeMode, error) {
	reply, err := s.call(ctx, Command{GPU: uuid, Operation: GetComputeMode})
	return reply.Mode, err
}

// call sends a command to the worker and returns its reply.
func (s *Settings) call(ctx context.Context, c Command) (Reply, error) {
	reply, err := s.send(c)
	if err != nil {
		return Reply{}, fmt.Errorf("%s of %s: %w", c.Operation, c.GPU, err)
	}
	select {
	case r, replied := <-reply:
		switch {
		case !replied:
			err = errWorkerEnded
		case r.Unsupported:
			err = fmt.Errorf("%w: %s", errors.ErrUnsupported, host.Printable(r.Failed, failedLimit))
		case r.Failed != "":
			err = errors.New(host.Printable(r.Failed, failedLimit))
		default:
			return r, nil
		}
	case <-ctx.Done():
		err = fmt.Errorf("%w: %w", errNoReply, context.Cause(ctx))
	}
	return Reply{}, fmt.Errorf("%s of %s: %w", c.Operation, c.GPU, err)
}

// send writes a command to the worker. The channel receives the reply, or is closed if the worker ends first.
func (s *Settings) send(c Command) (<-chan Reply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.worker == nil:
		return nil, ErrNoWorker
	case !s.limitMemory && c.Cgroup != "":
		return nil, errNotEnabled
	case len(s.pending) == MaxCommands:
		return nil, errBusy
	}
	s.last++
	c.ID = s.last
	line, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	line = append(line, '\n')
	if len(line) > CommandLimit {
		return nil, fmt.Errorf("%d bytes are more than the maximum of %d", len(line), CommandLimit)
	}
	if err := s.worker.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return nil, errWorkerEnded
	}
	switch _, err := s.worker.Write(line); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, errNotRead
	case err != nil:
		return nil, errWorkerEnded
	}
	reply := make(chan Reply, 1)
	s.pending[c.ID] = reply
	return reply, nil
}

// attach sets the worker that receives commands from now on.
func (s *Settings) attach(worker commandPipe, limitMemory bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.worker, s.limitMemory, s.pending = worker, limitMemory, map[uint64]chan<- Reply{}
}

// detach fails the pending commands and, until the next attach, all new ones.
func (s *Settings) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, reply := range s.pending {
		close(reply)
	}
	s.worker, s.pending = nil, nil
}

// deliver passes a reply of the attached worker to its caller.
func (s *Settings) deliver(r Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reply, found := s.pending[r.ID]; found {
		delete(s.pending, r.ID)
		reply <- r
	}
}
