package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/gpucdi/gpucdi/internal/host"
)

// process is a running worker.
type process struct {
	kill     context.CancelFunc
	marker   Marker
	messages chan Message // closed when it says no more
	ended    chan error   // gets why it ended, and holds it
}

// start starts a worker, which runs until it is killed or ctx ends. The goroutine that
// reads from it outlives a worker that cannot be killed, since the kernel
// holds it inside the driver: then ended stays empty.
func (s *source) start(ctx context.Context, root host.DriverRoot) (*process, error) {
	args := []string{
		"--host-root", s.cfg.Node.LocalPath("/"),
		"--library", root.LocalPath(root.NVML),
		"--interval", s.cfg.Interval.String(),
	}
	for index := range s.doubted {
		args = append(args, "--doubted", strconv.Itoa(index))
	}
	ctx, kill := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, s.cfg.Worker, args...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	marker, err := newMarker()
	if err != nil {
		kill()
		return nil, err
	}
	cmd.ExtraFiles = []*os.File{marker.file} // becomes markerFD
	// The worker ends when this end of its standard input is closed, as by the
	// end of this process.
	_, errIn := cmd.StdinPipe()
	stdout, errOut := cmd.StdoutPipe()
	if err := errors.Join(errIn, errOut); err != nil {
		kill()
		marker.file.Close()
		return nil, fmt.Errorf("starting the process that holds the driver: %w", err)
	}
	if err := cmd.Start(); err != nil {
		kill()
		marker.file.Close()
		return nil, fmt.Errorf("starting the process that holds the driver: %w", err)
	}
	p := &process{kill: kill, marker: marker, messages: make(chan Message), ended: make(chan error, 1)}
	go func() {
		misread := p.forward(ctx, json.NewDecoder(stdout))
		kill()
		close(p.messages)
		err := errors.Join(cmd.Wait(), misread)
		p.ended <- fmt.Errorf("the process that holds the driver ended: %w%s", err, lastWords(complaints.String()))
	}()
	return p, nil
}

// cCall is what stands before the name of a call into C, as those of NVML, in the trace that a Go
// program leaves when it crashes; after it the arguments follow in parentheses.
const cCall = "._Cfunc_"

// lastWords makes a line of what a worker wrote before it ended: what happened, and in which call,
// of NVML most often. The rest is addresses, which are others each time: people would be told again
// and again of a GPU whose every look ends like this.
func lastWords(written string) string {
	what, trace, _ := strings.Cut(strings.TrimSpace(written), "\n")
	if what != "" {
		what = ": " + what
	}
	if _, call, known := strings.Cut(trace, cCall); known {
		name, _, _ := strings.Cut(call, "(")
		what += " in " + name
	}
	return what
}

// forward passes on what the worker says, until it ends or ctx does. The error
// is for something that is no message.
func (p *process) forward(ctx context.Context, from *json.Decoder) error {
	// encoding/json takes half a millisecond to learn the types: while there is nothing to read.
	_ = json.Unmarshal([]byte("{}"), new(Message))
	for {
		var m Message
		switch err := from.Decode(&m); {
		case errors.Is(err, io.EOF) || ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("reading from it: %w", err)
		}
		select {
		case p.messages <- m:
		case <-ctx.Done():
			return nil
		}
	}
}
