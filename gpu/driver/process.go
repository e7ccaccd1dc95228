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
	drop     context.CancelFunc // ends messages, which come until the worker has ended
	marker   Marker
	messages chan Message  // closed after the last one
	ended    chan struct{} // closed when the worker has ended
	err      error         // why it ended; set before ended is closed
	killed   bool          // as err: by somebody else, not by itself or the driver

	probed bool // it has made a round

	// Between two checks of the marker:
	due   time.Duration // when the next one is due, by Clock
	quiet bool          // no step was under way at the last one, and there was no message since
}

// start starts a worker, which runs until it is killed or ctx ends. The goroutines that follow it
// outlive a worker that cannot be killed, since it hangs in the kernel: then ended stays open.
func start(ctx context.Context, worker string, args []string) (*process, error) {
	ctx, drop := context.WithCancel(ctx)
	alive, kill := context.WithCancel(ctx)
	p := &process{kill: kill, drop: drop, messages: make(chan Message), ended: make(chan struct{})}
	if err := p.launch(ctx, exec.CommandContext(alive, worker, args...)); err != nil {
		drop()
		return nil, fmt.Errorf("starting the driver worker: %w", err)
	}
	return p, nil
}

func (p *process) launch(ctx context.Context, cmd *exec.Cmd) (err error) {
	if p.marker, err = newMarker(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			p.marker.file.Close()
		}
	}()
	messages, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer writer.Close() // the worker has its own
	var words host.Output
	cmd.Stdout, cmd.Stderr = &words, &words
	cmd.ExtraFiles = []*os.File{p.marker.file, writer} // become markerFD and messagesFD
	host.KillWithChildren(cmd)
	// The worker ends when this end of its standard input is closed, as by the end of this process.
	if _, err = cmd.StdinPipe(); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		messages.Close()
		return err
	}
	go p.follow(ctx, cmd, messages, &words)
	return nil
}

// follow passes on the worker's messages and waits for its end.
func (p *process) follow(ctx context.Context, cmd *exec.Cmd, messages *os.File, words *host.Output) {
	defer messages.Close()
	pipe := pipe{messages, make(chan struct{})}
	go func() {
		_ = cmd.Wait() // its state says more than the error
		close(pipe.ended)
		_ = messages.SetReadDeadline(time.Now().Add(host.OutputDelay))
	}()
	misread := p.forward(ctx, pipe)
	p.kill()
	close(p.messages)
	<-pipe.ended
	what := cmd.ProcessState.String()
	if misread != nil {
		what += ": " + host.Printable(misread.Error(), wordsLimit)
	}
	p.err = fmt.Errorf("driver worker ended: %s%s", what, lastWords(words.String()))
	status, is := cmd.ProcessState.Sys().(syscall.WaitStatus)
	p.killed = is && (status.Signal() == syscall.SIGKILL || status.Signal() == syscall.SIGTERM)
	close(p.ended)
}

// pipe is where a worker writes its messages. A child of the worker may keep it open after the
// worker's end: from then on a read waits for a moment only.
type pipe struct {
	*os.File
	ended chan struct{} // closed when the worker has ended
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

// forward passes on the worker's messages until it ends or ctx does. The error is for something
// that is not a message.
func (p *process) forward(ctx context.Context, from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, messageLimit)
	for lines.Scan() && ctx.Err() == nil {
		var m Message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return fmt.Errorf("reading its message: %w", err)
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
		return fmt.Errorf("reading its message of at most %d bytes: %w", messageLimit, err)
	}
	return nil
}

const (
	// wordsLimit is how many bytes of a worker's words an error has room for.
	wordsLimit = 256
	// callLimit bounds the name of a function in a trace.
	callLimit = 64
	// cCall precedes the name of a C function, as those of NVML, in the stack trace of a Go program
	// that crashes. The arguments follow in parentheses.
	cCall = "._Cfunc_"
)

// lastWords makes a line of what a worker wrote before it ended: what happened, and in which call,
// mostly of NVML. The rest is addresses, which differ each time, so that the same crash would be
// reported again and again.
func lastWords(written string) string {
	what, trace, _ := strings.Cut(strings.TrimSpace(written), "\n")
	if what != "" {
		what = ": " + host.Printable(what, wordsLimit)
	}
	if _, call, known := strings.Cut(trace, cCall); known {
		name, _, _ := strings.Cut(call, "(")
		what += " in " + host.Printable(name, callLimit)
	}
	return what
}
