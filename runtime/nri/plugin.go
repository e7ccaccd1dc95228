package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/runtime"
)

const (
	// Socket is the path on the node of the socket where runtimes accept plugins.
	Socket = "/var/run/nri/nri.sock"

	pluginName = "gpucdi"
	// pluginIndex orders plugins. This plugin follows the usual ones, which may add devices. CDI devices that other
	// plugins request are not visible to it: the runtime injects them after it has called all plugins.
	pluginIndex = "90"

	// minBackoff and maxBackoff bound the time between attempts to connect.
	minBackoff = time.Second
	maxBackoff = 30 * time.Second
	// closeTimeout bounds the wait for the end of a lost connection.
	closeTimeout = 5 * time.Second
	// maxCalls bounds the calls in progress, including calls that exceeded their time.
	maxCalls = 64
)

// Config configures a Plugin.
type Config struct {
	Node host.Root

	// Create is called before a container is created, with the devices in its OCI spec, which include the CDI devices. An
	// error rejects the container, and is shown in the Events of its pod.
	Create func(ctx context.Context, c runtime.Container) error

	// Start is called when the cgroup of a container exists, before its program runs. cgroup is the name of the
	// container's directory in the cgroup of its pod.
	Start func(ctx context.Context, c runtime.Container, cgroup string)
}

// Status describes the connection to the runtime.
type Status struct {
	Runtime string    // name and version; empty while not connected
	Since   time.Time // when the connection was established; zero while not connected
	Problem string    // why the plugin is not connected; empty while connected
}

// Plugin is a plugin of the runtime of a node. Its methods are safe for concurrent use, except that Run must not be
// called while it runs.
type Plugin struct {
	cfg   Config
	log   *slog.Logger
	calls chan struct{} // has a value for each call in progress

	mu     sync.Mutex
	status Status
}

// New returns a Plugin that does nothing until Run is called.
func New(cfg Config, log *slog.Logger) *Plugin {
	return &Plugin{cfg: cfg, log: log, calls: make(chan struct{}, maxCalls), status: Status{Problem: "not connected yet"}}
}

// Status returns the status of the connection.
func (p *Plugin) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// setStatus replaces the status and reports whether it differs from the previous one.
func (p *Plugin) setStatus(s Status) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed, p.status = p.status != s, s
	return changed
}

// Run keeps the plugin connected until ctx ends.
func (p *Plugin) Run(ctx context.Context) {
	backoff := minBackoff
	for {
		start := time.Now()
		err := p.serve(ctx)
		if ctx.Err() != nil {
			p.setStatus(Status{Problem: "stopped"})
			return
		}
		if time.Since(start) > maxBackoff {
			backoff = minBackoff
		}
		if p.setStatus(Status{Problem: err.Error()}) {
			p.log.Warn("NRI not connected, containers not checked or limited through it, will retry", "err", err,
				"remedy", "enable NRI in the config of the container runtime")
		}
		select {
		case <-ctx.Done():
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

var errClosed = errors.New("the runtime closed the connection")

// serve connects, and handles calls until the connection is lost.
func (p *Plugin) serve(ctx context.Context) error {
	conn, err := p.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	h := &handler{Plugin: p}
	h.stub, err = stub.New(h, stub.WithConnection(conn), stub.WithPluginName(pluginName), stub.WithPluginIdx(pluginIndex),
		stub.WithOnClose(func() {}), stub.WithLogger(logger{p.log}),
		// By default, the runtime disconnects a plugin that responds too late. Runtimes with NRI before 0.12.5 ignore this.
		stub.WithFailurePolicy(&api.FailurePolicy{KeepConnected: true}))
	if err != nil {
		return fmt.Errorf("connecting to NRI: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- h.stub.Run(ctx) }()
	select {
	case err = <-done:
	case <-ctx.Done():
	case <-conn.lost:
	}
	if err == nil {
		err = errClosed
		// If the connection is lost before the runtime has configured the plugin, Run does not return.
		select {
		case <-done:
		case <-time.After(closeTimeout):
		}
	}
	return fmt.Errorf("serving NRI: %w", err)
}

// dial connects to the socket of the runtime.
func (p *Plugin) dial(ctx context.Context) (*connection, error) {
	resolved, err := p.cfg.Node.Resolve(Socket)
	if err != nil {
		return nil, fmt.Errorf("connecting to NRI: %w", err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", p.cfg.Node.LocalPath(resolved))
	if err != nil {
		return nil, fmt.Errorf("connecting to NRI: %w", err)
	}
	return &connection{Conn: conn, lost: make(chan struct{})}, nil
}

// connection closes lost when it is closed by either side.
type connection struct {
	net.Conn
	once sync.Once
	lost chan struct{}
}

func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.lose()
	}
	return n, err
}

func (c *connection) Close() error {
	c.lose()
	return c.Conn.Close()
}

func (c *connection) lose() { c.once.Do(func() { close(c.lost) }) }

// logger logs all messages of the NRI library at debug level, because they are meant for developers.
type logger struct{ *slog.Logger }

func (l logger) Debugf(ctx context.Context, format string, args ...any) {
	l.DebugContext(ctx, fmt.Sprintf(format, args...), "from", "nri")
}
func (l logger) Infof(ctx context.Context, format string, args ...any) {
	l.Debugf(ctx, format, args...)
}
func (l logger) Warnf(ctx context.Context, format string, args ...any) {
	l.Debugf(ctx, format, args...)
}
func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	l.Debugf(ctx, format, args...)
}
