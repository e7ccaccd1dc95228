package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/gpucdi/gpucdi/test/box"
	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

// Name is what the node is called.
const Name = "box"

// Config says what node to start.
type Config struct {
	// Box is the machine to make; Box.Dir must be given. Its hostname is set here.
	Box box.Config
	// Logs is the directory for the components' logs, which outlives the node; logs below
	// Box.Dir when empty, which does not.
	Logs string
	// Prepare is called when the box is up and before Kubernetes is started in it: the moment
	// to install a driver.
	Prepare func(context.Context, *box.Box) error
	// Runtime is the node's container runtime, Containerd when it is not given.
	Runtime Runtime
	// Kubelet has the kubelet's program, that of the control plane's version when empty.
	Kubelet tools.Tool
	// KubeletDir is the kubelet's root directory, the usual one when empty.
	KubeletDir string
	// Images are made, while the programs are built, and imported besides the sandbox's and
	// Debian's; each returns an archive.
	Images []func(context.Context) (archive string, err error)
	// Stage is told when a stage starts; what it returns is called when the stage has ended
	// well. May be nil.
	Stage func(name string) (done func())
}

// Node is a running node with its control plane.
type Node struct {
	Box        *box.Box
	runtime    Runtime
	kubeletDir string
	logs       string

	mu        sync.Mutex // guards processes
	processes map[string]*process
}

// A stage is a step of starting with a name to show.
type stage struct {
	name string
	run  func(context.Context) error
}

// Start brings a node up and returns when it is Ready and can start pods. The context ends
// the starting, not the node.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	if cfg.Runtime.Name == "" {
		cfg.Runtime = Containerd()
	}
	n := &Node{
		runtime: cfg.Runtime, kubeletDir: cmp.Or(cfg.KubeletDir, "/var/lib/kubelet"), logs: cfg.Logs,
		processes: map[string]*process{},
	}
	var dirs, archives []string // of programs; of images
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	background, backgroundCtx := errgroup.WithContext(ctx)
	background.Go(func() (err error) {
		archives, err = makeImages(backgroundCtx, append([]maker{images.Pause, images.Debian}, cfg.Images...))
		return err
	})
	var stages []stage
	for _, p := range programs(cfg) {
		stages = append(stages, stage{p.name, func(ctx context.Context) error {
			dir, err := tools.Build(ctx, p.tool)
			dirs = append(dirs, dir)
			return err
		}})
	}
	stages = append(stages, []stage{
		{"images", func(context.Context) error { return background.Wait() }},
		{"machine", func(ctx context.Context) error { return n.openBox(ctx, cfg, dirs) }},
		{"control plane", n.startControlPlane},
		{"container runtime", func(ctx context.Context) error { return n.startRuntime(ctx, archives) }},
		{"kubelet", n.startNode},
	}...)
	for _, s := range stages {
		done := func() {}
		if cfg.Stage != nil {
			done = cfg.Stage(s.name)
		}
		if err := s.run(ctx); err != nil {
			cancel()
			_ = background.Wait()
			return nil, errors.Join(fmt.Errorf("starting the node, at %q: %w", s.name, err), n.Close())
		}
		done()
	}
	return n, nil
}

// A program is something that the node runs.
type program struct {
	name string // to show
	tool tools.Tool
}

// programs are built in this order, each in a stage of its own; of two that have a name, the later
// one is installed.
func programs(cfg Config) []program {
	all := []program{{"Kubernetes", tools.Kube}, {cfg.Runtime.Name, cfg.Runtime.tool}, {"runc", tools.Runc}}
	if cfg.Kubelet != "" {
		all = append(all, program{string(cfg.Kubelet), cfg.Kubelet})
	}
	return all
}

// A maker makes an image and returns its archive.
type maker = func(context.Context) (string, error)

func makeImages(ctx context.Context, makers []maker) ([]string, error) {
	var archives []string
	for _, m := range makers {
		archive, err := m(ctx)
		if err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	return archives, nil
}

// openBox makes the box and puts the programs and the configuration into it.
func (n *Node) openBox(ctx context.Context, cfg Config, programs []string) error {
	cfg.Box.Hostname = Name
	if cfg.Box.Binds == nil {
		cfg.Box.Binds = map[string]string{}
	}
	for _, dir := range programs {
		cfg.Box.Binds[dir] = filepath.Join("/opt/programs", filepath.Base(dir))
	}
	b, err := box.Start(ctx, cfg.Box)
	if err != nil {
		return err
	}
	n.Box = b
	if n.logs == "" {
		n.logs = filepath.Join(b.Dir(), "logs")
	}
	if err := os.MkdirAll(n.logs, 0o755); err != nil {
		return fmt.Errorf("making the directory for logs: %w", err)
	}
	for _, dir := range programs {
		if err := linkPrograms(b, dir, cfg.Box.Binds[dir]); err != nil {
			return err
		}
	}
	if err := configure(ctx, b, n.runtime); err != nil {
		return err
	}
	if err := n.prepareKernel(ctx); err != nil {
		return err
	}
	if cfg.Prepare == nil {
		return nil
	}
	return cfg.Prepare(ctx, b)
}

// linkPrograms makes the programs of a directory commands in the box.
func linkPrograms(b *box.Box, dir, inside string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading the programs in %s: %w", dir, err)
	}
	for _, e := range entries {
		link := b.Path(filepath.Join("/usr/local/bin", e.Name()))
		if err := os.RemoveAll(link); err != nil {
			return fmt.Errorf("replacing %s: %w", link, err)
		}
		if err := os.Symlink(filepath.Join(inside, e.Name()), link); err != nil {
			return fmt.Errorf("installing %s: %w", e.Name(), err)
		}
	}
	return nil
}

// Close ends everything that runs on the node and removes the box.
func (n *Node) Close() error {
	if n.Box == nil {
		return nil
	}
	err := n.Box.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	var wait errgroup.Group
	for _, p := range n.processes {
		wait.Go(func() error { <-p.ended; return nil })
	}
	return errors.Join(err, wait.Wait())
}
