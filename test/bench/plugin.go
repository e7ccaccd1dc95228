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

	"github.com/gpucdi/gpucdi/test/nvidia"
)

// registrationTimeout bounds the time from the start of a plugin to its registration, and from there to its devices.
const registrationTimeout = 2 * time.Minute

// stopTimeout bounds the time from SIGTERM to the exit of a plugin.
const stopTimeout = time.Minute

// plugin is a running device plugin with its kubelet.
type plugin struct {
	cmd       *exec.Cmd
	dir       string // contains its log, sockets and CDI specs
	address   string // for status and metrics, if the plugin serves them
	namespace *nvidia.Namespace
	kubelet   *kubelet
	conn      *grpc.ClientConn
	endStream context.CancelFunc // ends the ListAndWatch stream

	devices []string
	size    int           // size of the list of devices, in bytes
	took    time.Duration // from the start to the first list of devices
}

// serve starts a plugin on a node without state of earlier plugins, and waits for its devices.
func (n *node) serve(ctx context.Context, command server) (p *plugin, err error) {
	// The directory is on a tmpfs, as /var/run/cdi is on a node.
	dir, err := os.MkdirTemp("/dev/shm", "gpucdi-bench-")
	if err != nil {
		return nil, fmt.Errorf("creating a directory: %w", err)
	}
	streamCtx, endStream := context.WithCancel(ctx)
	p = &plugin{dir: dir, endStream: endStream}
	defer func() {
		if err != nil {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			err = errors.Join(fmt.Errorf("%w\n%s", err, log), p.stop())
		}
	}()
	if err := p.prepare(ctx, n); err != nil {
		return p, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return p, err
	}
	defer log.Close()
	cmd := command(context.WithoutCancel(ctx), n, p.address) // until stop
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

	start := time.Now()
	if err := p.namespace.Start(cmd); err != nil {
		return p, err
	}
	p.cmd = cmd
	select {
	case p.conn = <-p.kubelet.plugins:
	case <-time.After(registrationTimeout):
		return p, fmt.Errorf("%s did not register", cmd)
	case <-ctx.Done():
		return p, ctx.Err()
	}
	late := time.AfterFunc(registrationTimeout, endStream)
	p.devices, p.size, err = awaitDevices(streamCtx, p.conn, n.count)
	late.Stop()
	p.took = time.Since(start)
	return p, err
}

func (p *plugin) kubeletDir() string { return filepath.Join(p.dir, "kubelet") }

// prepare creates the kubelet and the directories that a node has before its device plugin starts.
func (p *plugin) prepare(ctx context.Context, n *node) (err error) {
	cdiDir, plugins := filepath.Join(p.dir, "cdi"), filepath.Join(p.kubeletDir(), "device-plugins")
	if err := errors.Join(os.MkdirAll(plugins, 0o755), os.Mkdir(cdiDir, 0o755)); err != nil {
		return err
	}
	p.namespace, err = nvidia.NewNamespace(n.root, map[string]string{p.kubeletDir(): "/var/lib/kubelet", cdiDir: "/var/run/cdi"})
	if err != nil {
		return err
	}
	if p.kubelet, err = listen(ctx, plugins); err != nil {
		return err
	}
	p.address, err = freeAddress(ctx)
	return err
}

// stop stops the plugin and its kubelet, and removes their files.
func (p *plugin) stop() error {
	var err error
	p.endStream()
	if p.cmd != nil {
		err = errors.Join(terminate(p.cmd.Process), p.cmd.Wait())
	}
	if p.conn != nil {
		err = errors.Join(err, p.conn.Close())
	}
	if p.kubelet != nil {
		p.kubelet.close()
	}
	if p.namespace != nil {
		p.namespace.Close()
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}

// terminate sends SIGTERM to a process, and SIGKILL if it has not exited after stopTimeout.
func terminate(process *os.Process) error {
	time.AfterFunc(stopTimeout, func() { _ = process.Kill() }) // does nothing once the process has been waited for
	return process.Signal(syscall.SIGTERM)
}

// pair is gpucdi's and NVIDIA's device plugin, running on the same node.
type pair struct{ ours, nvidia *plugin }

func (b *bench) serveBoth(ctx context.Context, n *node) (pair, error) {
	return n.serveBoth(ctx, b.agent, b.nvidia)
}

func (n *node) serveBoth(ctx context.Context, agent, other server) (pair, error) {
	ours, err := n.serve(ctx, agent)
	if err != nil {
		return pair{}, err
	}
	nvidia, err := n.serve(ctx, other)
	if err != nil {
		return pair{}, errors.Join(err, ours.stop())
	}
	return pair{ours, nvidia}, nil
}

func (p pair) stop() error { return errors.Join(p.ours.stop(), p.nvidia.stop()) }
