package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// patience is what the agent may take before something is wrong.
const patience = 30 * time.Second

// node is a host's root with a simulated driver and a container runtime.
type node struct {
	root   string
	driver *simdriver.Driver
	stop   func()
}

// close ends what install started.
func (b *bench) close() {
	for _, n := range []*node{b.nodes.eight, b.nodes.sixteen} {
		if n != nil {
			n.stop()
		}
	}
}

func (b *bench) install(ctx context.Context) error {
	for _, p := range []struct {
		at      **node
		profile simdriver.Profile
	}{{&b.nodes.eight, simdriver.H100x8()}, {&b.nodes.sixteen, simdriver.GPUs16()}} {
		root := filepath.Join(b.dir, p.profile.Name)
		driver, err := simdriver.Install(root, p.profile)
		if err != nil {
			return err
		}
		stop, err := serveRuntime(ctx, root)
		if err != nil {
			return err
		}
		*p.at = &node{root: root, driver: driver, stop: stop}
	}
	return nil
}

// agent is gpucdi serve as it runs, known to a kubelet.
type agent struct {
	cmd     *exec.Cmd
	dir     string // with its log, its sockets and its specs
	address string // of its status and metrics
	kubelet *kubelet
	conn    *grpc.ClientConn
	hangUp  context.CancelFunc // ends the ListAndWatch stream

	devices []string
	took    time.Duration // from the start to the first list of devices
}

// serve starts the agent on a node that was never served, and waits for its devices. Its
// directories are in memory, as /var/run/cdi is.
func (b *bench) serve(ctx context.Context, n *node) (a *agent, err error) {
	dir, err := os.MkdirTemp("/dev/shm", "gpucdi-bench-")
	if err != nil {
		return nil, fmt.Errorf("making a directory in memory: %w", err)
	}
	streamCtx, hangUp := context.WithCancel(ctx)
	a = &agent{dir: dir, hangUp: hangUp}
	defer func() {
		if err != nil {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			err = errors.Join(fmt.Errorf("%w\n%s", err, log), a.stop())
		}
	}()
	plugins := filepath.Join(dir, "device-plugins")
	if err := os.Mkdir(plugins, 0o755); err != nil {
		return a, err
	}
	if a.kubelet, err = listen(ctx, plugins); err != nil {
		return a, err
	}
	if a.address, err = freeAddress(ctx); err != nil {
		return a, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return a, err
	}
	defer log.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), b.product, // stop ends it
		"serve", "--host-root", n.root, "--kubelet-dir", dir, "--cdi-dir", filepath.Join(dir, "cdi"),
		"--listen", a.address)
	cmd.Env = append(os.Environ(), n.driver.Env("")...)
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

	began := time.Now()
	if err := cmd.Start(); err != nil {
		return a, err
	}
	a.cmd = cmd
	select {
	case a.conn = <-a.kubelet.plugins:
	case <-time.After(patience):
		return a, errors.New("the agent did not register")
	case <-ctx.Done():
		return a, ctx.Err()
	}
	a.devices, err = awaitDevices(streamCtx, a.conn, len(n.driver.State().GPUs))
	a.took = time.Since(began)
	return a, err
}

// stop ends the agent and removes what it had.
func (a *agent) stop() error {
	var err error
	a.hangUp()
	if a.cmd != nil {
		err = errors.Join(a.cmd.Process.Signal(syscall.SIGTERM), a.cmd.Wait())
	}
	if a.conn != nil {
		err = errors.Join(err, a.conn.Close())
	}
	if a.kubelet != nil {
		a.kubelet.close()
	}
	return errors.Join(err, os.RemoveAll(a.dir))
}

// startCount is how often the agent is started.
const startCount = 30

// starts measures how soon the agent is of use, beside what any start of the program takes.
func (b *bench) starts(ctx context.Context) error {
	var bare, took []time.Duration
	for range startCount {
		t, err := timed(exec.CommandContext(ctx, b.product, "version").Run)
		if err != nil {
			return fmt.Errorf("running gpucdi version: %w", err)
		}
		bare = append(bare, t)
		a, err := b.serve(ctx, b.nodes.eight)
		if err != nil {
			return err
		}
		took = append(took, a.took)
		if err := a.stop(); err != nil {
			return err
		}
	}
	value := fmt.Sprintf("%s (gpucdi version: %s)", millis(median(took)), millis(median(bare)))
	b.table.add("start to first ListAndWatch", value, "15.6 ms", "26 ms")
	return nil
}
