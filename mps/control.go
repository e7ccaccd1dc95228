package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/internal/sockets"
)

const (
	// defaultPercentage limits the namespace "default" of each server. No container gets its directory; this is the limit
	// of one that finds it nevertheless.
	defaultPercentage = 1
	// defaultName is the namespace that each server has from its start.
	defaultName = "default"
	// socketName is the socket of the daemon, a server or a namespace, in its directory.
	socketName = "control"
	// Columns of a list of servers.
	pidColumn, statusColumn = 2, 3
	// statusFault is the status of a server whose process has died. Such a server is listed until it is deleted.
	statusFault = "Fault"
)

// Share is a part of the compute time of a GPU.
type Share struct {
	GPU        string // UUID
	Name       string // unique on the GPU; see Name
	Percentage int    // of the GPU's multiprocessors, 1 to 100
}

// Control sends commands to the control daemon. Its methods are safe for concurrent use, and idempotent, so a failed
// call can be repeated. They return when ctx ends, except while they wait for a concurrent change. A command whose
// program the kernel does not kill then is not repeated before that program has exited.
type Control struct {
	Program Program
	Dir     string // pipe directory of the daemon, the same path on the node and in this process

	mu  sync.Mutex // serializes changes: a check and the change that follows it
	run runner     // nil: Program.run

	commands host.Calls // by arguments
	probes   host.Calls // by UUID of the GPU
}

// runner runs the control program with arguments and returns its output.
type runner func(ctx context.Context, dir string, args ...string) (string, error)

// maxName bounds the names of servers and namespaces, in bytes, and namePattern is their format.
const maxName = 64

var namePattern = regexp.MustCompile(`^[a-z0-9_]+$`)

func isName(text string) bool { return len(text) <= maxName && namePattern.MatchString(text) }

// Name returns the name of a share for a claim UID.
func Name(uid string) (string, error) {
	name := strings.ReplaceAll(strings.ToLower(uid), "-", "_")
	if !isName(name) {
		return "", fmt.Errorf("claim UID %q is not a valid name of an MPS namespace", uid)
	}
	return name, nil
}

// server returns the name of the server of a GPU.
func server(uuid string) string {
	return strings.ReplaceAll(strings.ToLower(uuid), "-", "_")
}

// Directory returns the directory of a share, for CUDA_MPS_PIPE_DIRECTORY.
func (c *Control) Directory(s Share) string { return filepath.Join(c.Dir, server(s.GPU), s.Name) }

// Probe calls CUDA as a client of the server of a GPU, in a process of the driver worker executable. It returns when ctx
// ends, even if the process hangs in the kernel. Until that process has exited, further calls for this GPU fail.
func (c *Control) Probe(ctx context.Context, worker, gpu string) error {
	err := c.probes.Do(ctx, gpu, func() error { return c.Program.probe(ctx, worker, filepath.Join(c.Dir, server(gpu))) })
	switch {
	case errors.Is(err, host.ErrNotExited):
		return fmt.Errorf("starting %s: %w", filepath.Base(worker), err)
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// EnsureServer creates the server of a GPU unless it exists, and replaces one that has died.
func (c *Control) EnsureServer(ctx context.Context, gpu string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ensureServer(ctx, gpu)
}

// Ensure creates the server of the GPU and the namespace of the share unless they exist, replaces a server that has died,
// and sets and verifies the percentage of the namespace. The percentage of a share with clients cannot be changed.
func (c *Control) Ensure(ctx context.Context, s Share) error {
	if socket := filepath.Join(c.Directory(s), socketName); len(socket) > sockets.MaxPath {
		return fmt.Errorf("MPS socket path %s has %d bytes, more than the maximum of %d; use a shorter --state-dir", socket, len(socket), sockets.MaxPath)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.ensureServer(ctx, s.GPU); err != nil {
		return err
	}
	if err := c.ensureNamespace(ctx, s); err != nil {
		return fmt.Errorf("creating MPS namespace %s of %s: %w", s.Name, s.GPU, err)
	}
	if _, err := os.Stat(filepath.Join(c.Directory(s), socketName)); err != nil {
		return fmt.Errorf("creating MPS namespace %s of %s: %w", s.Name, s.GPU, err)
	}
	return nil
}

func (c *Control) ensureServer(ctx context.Context, gpu string) error {
	status, err := c.status(ctx, gpu)
	if err == nil && status == statusFault { // its clients have ended, too
		_, err = c.command(ctx, "server", "delete", server(gpu), "--force")
		status = ""
	}
	switch {
	case err != nil:
	case status == "":
		err = c.createServer(ctx, gpu)
	default:
		err = c.limitDefault(ctx, gpu) // an agent may have been killed before it did
	}
	if err != nil {
		return fmt.Errorf("starting the MPS server of %s: %w", gpu, err)
	}
	return nil
}

func (c *Control) createServer(ctx context.Context, gpu string) error {
	if _, err := c.command(ctx, "server", "create", server(gpu), "--allowed-devices="+gpu); err != nil {
		return err
	}
	if err := c.limitDefault(ctx, gpu); err != nil {
		return err
	}
	// A server for a GPU that MPS cannot use is created successfully, but disappears.
	found, err := c.serves(ctx, gpu)
	if err == nil && !found {
		err = errors.New("the server has ended; see its log in the log directory of the MPS daemon")
	}
	return err
}

// limitDefault limits the namespace "default" of a server.
func (c *Control) limitDefault(ctx context.Context, gpu string) error {
	if current, err := c.percentage(ctx, Share{GPU: gpu, Name: defaultName}); err == nil && current == defaultPercentage {
		return nil
	}
	_, err := c.command(ctx, "server", "set", server(gpu), percentageFlag(defaultPercentage))
	return err
}

func (c *Control) ensureNamespace(ctx context.Context, s Share) error {
	names, err := c.namespaces(ctx, s.GPU)
	if err != nil {
		return err
	}
	if !slices.Contains(names, s.Name) {
		if _, err := c.command(ctx, "namespace", "create", s.Name, serverFlag(s.GPU)); err != nil {
			return err
		}
	}
	if current, err := c.percentage(ctx, s); err == nil && current == s.Percentage {
		return nil
	}
	if _, err := c.command(ctx, "namespace", "set", s.Name, serverFlag(s.GPU), percentageFlag(s.Percentage)); err != nil {
		return err
	}
	current, err := c.percentage(ctx, s)
	if err == nil && current != s.Percentage {
		err = fmt.Errorf("the MPS daemon reports %d %% after %d %% was set", current, s.Percentage)
	}
	return err
}

// Remove removes the namespace of a share, and terminates clients that are left in it. It succeeds if the namespace
// does not exist.
func (c *Control) Remove(ctx context.Context, s Share) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.remove(ctx, s); err != nil && !errors.Is(err, ErrNotRunning) { // the daemon's end removes all namespaces
		return fmt.Errorf("removing MPS namespace %s of %s: %w", s.Name, s.GPU, err)
	}
	return nil
}

func (c *Control) remove(ctx context.Context, s Share) error {
	found, err := c.serves(ctx, s.GPU)
	if err != nil || !found {
		return err
	}
	names, err := c.namespaces(ctx, s.GPU)
	if err != nil || !slices.Contains(names, s.Name) {
		return err
	}
	_, err = c.command(ctx, "namespace", "delete", s.Name, serverFlag(s.GPU))
	if err != nil { // it has clients
		_, err = c.command(ctx, "namespace", "delete", s.Name, serverFlag(s.GPU), "--force")
	}
	return err
}

// status returns the status of the server of a GPU; empty if there is none.
func (c *Control) status(ctx context.Context, gpu string) (string, error) {
	rows, err := c.list(ctx, "server")
	for _, row := range rows {
		if row[0] == server(gpu) && len(row) > statusColumn {
			return row[statusColumn], err
		}
	}
	return "", err
}

// Served returns the UUIDs in gpus whose GPU has a server, which may have died.
func (c *Control) Served(ctx context.Context, gpus []string) (served []string, err error) {
	rows, err := c.list(ctx, "server")
	if err != nil {
		return nil, err
	}
	for _, gpu := range gpus {
		if slices.ContainsFunc(rows, func(row []string) bool { return row[0] == server(gpu) }) {
			served = append(served, gpu)
		}
	}
	return served, nil
}

func (c *Control) serves(ctx context.Context, gpu string) (bool, error) {
	served, err := c.Served(ctx, []string{gpu})
	return len(served) > 0, err
}

// RemoveServer ends the server of a GPU with all its clients. It succeeds if there is none.
func (c *Control) RemoveServer(ctx context.Context, gpu string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, err := c.serves(ctx, gpu)
	if err == nil && found {
		_, err = c.command(ctx, "server", "delete", server(gpu), "--force")
	}
	if err != nil && !errors.Is(err, ErrNotRunning) {
		return fmt.Errorf("ending the MPS server of %s: %w", gpu, err)
	}
	return nil
}

// Namespaces returns the names of the namespaces of a GPU's server, except "default"; none if it has no server.
func (c *Control) Namespaces(ctx context.Context, gpu string) ([]string, error) {
	if found, err := c.serves(ctx, gpu); err != nil || !found {
		return nil, err
	}
	names, err := c.namespaces(ctx, gpu)
	return slices.DeleteFunc(names, func(name string) bool { return name == defaultName }), err
}

// namespaces returns the names of the namespaces of a GPU's server.
func (c *Control) namespaces(ctx context.Context, gpu string) (names []string, err error) {
	rows, err := c.list(ctx, "namespace", serverFlag(gpu))
	for _, row := range rows {
		names = append(names, row[0])
	}
	return names, err
}

// list runs the command "list" of an MPS module, "server" or "namespace", and returns the columns of each row.
func (c *Control) list(ctx context.Context, module string, args ...string) (rows [][]string, err error) {
	out, err := c.command(ctx, append([]string{module, "list", "--format=csv,noheader"}, args...)...)
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); line != "" {
			rows = append(rows, strings.Split(line, ","))
		}
	}
	return rows, err
}

// percentage returns the percentage of a share's namespace. The daemon reports it as 25 or 25.00.
func (c *Control) percentage(ctx context.Context, s Share) (int, error) {
	out, err := c.command(ctx, "namespace", "get", s.Name, server(s.GPU), "active-thread-percentage")
	if err != nil {
		return 0, err
	}
	value, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(out), "%"), 64)
	if err != nil {
		return 0, fmt.Errorf("parsing the percentage of the MPS daemon: %w", err)
	}
	return int(value), nil
}

func (c *Control) command(ctx context.Context, args ...string) (string, error) {
	socket := filepath.Join(c.Dir, socketName)
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return "", ErrNotRunning
	}
	run := c.run
	if run == nil {
		run = c.Program.run
	}
	var out string
	err := c.commands.Do(ctx, strings.Join(args, " "), func() (err error) {
		out, err = run(ctx, c.Dir, args...)
		return err
	})
	switch {
	case err == nil:
		return out, nil
	case !sockets.HasListener(ctx, socket): // a killed daemon leaves its socket behind
		return "", ErrNotRunning
	case errors.Is(err, host.ErrNotExited):
		err = fmt.Errorf("starting %s %s: %w", controlName, strings.Join(args, " "), err)
	case ctx.Err() != nil:
		err = fmt.Errorf("waiting for %s %s: %w", controlName, strings.Join(args, " "), context.Cause(ctx))
	}
	return "", err
}

// ErrNotRunning means that no daemon runs, and so no servers.
var ErrNotRunning = errors.New("the MPS daemon does not run; start gpucdi mps on this node, with mpsDaemon.enabled of the chart")

func serverFlag(gpu string) string { return "--server=" + server(gpu) }

func percentageFlag(percentage int) string {
	return "--active-thread-percentage=" + strconv.Itoa(percentage)
}
