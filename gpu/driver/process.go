package driver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/gpucdi/gpucdi/internal/host"
)

// process is a running driver worker.
type process struct {
	kill     context.CancelFunc
	drop     context.CancelFunc // kills the worker and stops forwarding its messages
	stepLog  StepLog
	commands *os.File      // write end of the worker's standard input
	messages chan Message  // closed after the last message
	ended    chan struct{} // closed when the worker has exited
	err      error         // the cause of the exit; set before ended is closed
	killed   bool          // by SIGKILL or SIGTERM, and not for an invalid message; set before ended is closed

	probed  bool  // has completed a probe cycle
	blocked []int // see hung; none after the first probe cycle

	// Between two checks of the step log:
	due  time.Duration // time of the next check, by Clock
	idle bool          // no step was in progress at the last check, and no message has arrived since
}

// start starts a worker, which runs until it is killed or ctx ends. A worker that hangs in the kernel cannot be killed:
// ended stays open then, and the goroutines that watch the worker keep running. The loader searches libraryDirs before
// its default directories.
func start(ctx context.Context, worker string, libraryDirs, args []string) (*process, error) {
	ctx, drop := context.WithCancel(ctx)
	alive, kill := context.WithCancel(ctx)
	p := &process{kill: kill, drop: drop, messages: make(chan Message), ended: make(chan struct{})}
	cmd := exec.CommandContext(alive, worker, args...)
	if len(libraryDirs) > 0 {
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libraryDirs, ":"))
	}
	if err := p.launch(ctx, cmd); err != nil {
		drop()
		return nil, fmt.Errorf("starting the driver worker: %w", err)
	}
	return p, nil
}

func (p *process) launch(ctx context.Context, cmd *exec.Cmd) (err error) {
	if p.stepLog, err = newStepLog(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			p.stepLog.file.Close()
		}
	}()
	messages, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer writer.Close() // the worker has a duplicate
	var output host.Output
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.ExtraFiles = []*os.File{p.stepLog.file, writer} // become stepLogFD and messagesFD
	host.KillWithChildren(cmd)
	// The worker exits when its standard input is closed, which happens when this process exits.
	input, commands, err := os.Pipe()
	if err == nil {
		defer input.Close() // the worker has a duplicate
		cmd.Stdin, p.commands = input, commands
		if err = cmd.Start(); err != nil {
			commands.Close()
		}
	}
	if err != nil {
		messages.Close()
		return err
	}
	go p.watch(ctx, cmd, messages, &output)
	return nil
}

// watch forwards the worker's messages and waits for its exit.
func (p *process) watch(ctx context.Context, cmd *exec.Cmd, messages *os.File, output *host.Output) {
	defer messages.Close()
	pipe := pipe{messages, make(chan struct{})}
	go func() {
		_ = cmd.Wait() // ProcessState has more details than the error
		p.commands.Close()
		close(pipe.ended)
		_ = messages.SetReadDeadline(time.Now().Add(host.OutputDelay))
	}()
	invalid := p.forward(ctx, pipe)
	p.kill()
	close(p.messages)
	<-pipe.ended
	state := cmd.ProcessState.String()
	if invalid != nil {
		state += ": " + host.Printable(invalid.Error(), outputLimit)
	}
	p.err = fmt.Errorf("driver worker exited: %s%s", state, crashSummary(output.String()))
	status, is := cmd.ProcessState.Sys().(syscall.WaitStatus)
	p.killed = invalid == nil && is && (status.Signal() == syscall.SIGKILL || status.Signal() == syscall.SIGTERM)
	close(p.ended)
}

// pipe is the read end of the worker's message pipe. A child of the worker may keep the write end open after the worker
// has exited, so reads have a deadline from then on.
type pipe struct {
	*os.File
	ended chan struct{} // closed when the worker has exited
}

func (p pipe) Read(b []byte) (int, error) {
	select {
	case <-p.ended:
		if err := p.SetReadDeadline(time.Now().Add(host.OutputDelay)); err != nil {
			return 0, err
		}
	default:
	}
	n, err := p.File.Read(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = io.EOF
	}
	return n, err
}

// forward sends the worker's messages to p.messages until the pipe is closed or ctx ends. It returns an error for an
// invalid message.
func (p *process) forward(ctx context.Context, from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, messageLimit)
	for lines.Scan() && ctx.Err() == nil {
		var m Message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return fmt.Errorf("decoding message: %w", err)
		}
		select {
		case p.messages <- m:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading message of at most %d bytes: %w", messageLimit, err)
	}
	return nil
}

const (
	// outputLimit is the maximum length of a worker's output in an error, in bytes.
	outputLimit = 256
	// functionLimit is the maximum length of a function name in an error, in bytes.
	functionLimit = 64
	// cgoPrefix precedes the name of a C function in a Go stack trace. Its arguments follow in parentheses.
	cgoPrefix = "._Cfunc_"
)

// crashSummary summarizes a worker's output in one line: the first line, and the C function in the stack trace, usually
// an NVML function. It omits addresses, which would make the error of each crash different.
func crashSummary(output string) string {
	summary, trace, _ := strings.Cut(strings.TrimSpace(output), "\n")
	if summary != "" {
		summary = ": " + host.Printable(summary, outputLimit)
	}
	if _, call, found := strings.Cut(trace, cgoPrefix); found {
		name, _, _ := strings.Cut(call, "(")
		summary += " in " + host.Printable(name, functionLimit)
	}
	return summary
}
