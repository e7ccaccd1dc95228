package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/gpucdi/gpucdi/test/box"
	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

// Name is the node's name in the cluster.
const Name = "box"

// Config configures a node.
type Config struct {
	// Box configures the machine. Box.Dir is required; Start sets the hostname.
	Box box.Config
	// Logs is the directory for the components' logs, which Close keeps. Default: logs below Box.Dir, which Close
	// removes.
	Logs string
	// Prepare is called after the box has started and before Kubernetes does, for example to install a driver. May be
	// nil.
	Prepare func(context.Context, *box.Box) error
	// Runtime is the node's container runtime. Default: Containerd.
	Runtime Runtime
	// Kubernetes is the release of etcd, the control plane and the kubelet. Default: tools.Kube. kubectl is that of
	// tools.Kube.
	Kubernetes tools.Tool
	// KubeletDir is the kubelet's root directory. Default: /var/lib/kubelet.
	KubeletDir string
	// Images build images to import in addition to the sandbox and Debian images. Each returns an archive. They are
	// called one after the other, while the programs are built.
	Images []func(context.Context) (archive string, err error)
	// Stage is called when a stage starts, and its result when the stage has succeeded. May be nil.
	Stage func(name string) (done func())
}

// Node is a running node with its control plane.
type Node struct {
	Box        *box.Box
	runtime    Runtime
	kubeletDir string
	logs       string
	kubectl    cmdutil.Factory // clients of Kubectl

	mu        sync.Mutex // guards processes
	processes map[string]*process
}

// A stage is a step of Start with its display name.
type stage struct {
	name string
	run  func(context.Context) error
}

// Start starts a node and returns when it is Ready and can start pods. The context limits Start, not the lifetime of
// the node.
func Start(ctx context.Context, cfg Config) (*Node, error) {
	if cfg.Runtime.Name == "" {
		cfg.Runtime = Containerd()
	}
	n := &Node{
		runtime: cfg.Runtime, kubeletDir: cmp.Or(cfg.KubeletDir, "/var/lib/kubelet"), logs: cfg.Logs,
		processes: map[string]*process{},
	}
	var dirs, archives []string // directories of programs, archives of images
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	background, backgroundCtx := errgroup.WithContext(ctx)
	background.Go(func() (err error) {
		archives, err = buildImages(backgroundCtx, append([]builder{images.Pause, images.Debian}, cfg.Images...))
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
			return nil, errors.Join(fmt.Errorf("starting the node, stage %q: %w", s.name, err), n.Close())
		}
		done()
	}
	return n, nil
}

// A program is a tool that the node runs.
type program struct {
	name string // for display
	tool tools.Tool
}

// programs returns the programs in build order. The build of each is a stage. If two tools contain a file of the same
// name, the file of the later tool is installed.
func programs(cfg Config) []program {
	all := []program{{"Kubernetes", tools.Kube}, {cfg.Runtime.Name, cfg.Runtime.tool}, {"runc", tools.Runc}}
	if cfg.Kubernetes != "" {
		all = append(all, program{string(cfg.Kubernetes), cfg.Kubernetes})
	}
	return all
}

// A builder builds an image and returns its archive.
type builder = func(context.Context) (string, error)

func buildImages(ctx context.Context, builders []builder) ([]string, error) {
	var archives []string
	for _, build := range builders {
		archive, err := build(ctx)
		if err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	return archives, nil
}

// openBox starts the box and installs the programs and the configuration.
func (n *Node) openBox(ctx context.Context, cfg Config, programs []string) error {
	cfg.Box.Hostname = Name
	binds := map[string]string{}
	maps.Copy(binds, cfg.Box.Binds) // the caller's
	for _, dir := range programs {
		binds[dir] = filepath.Join("/opt/programs", filepath.Base(dir))
	}
	cfg.Box.Binds = binds
	b, err := box.Start(ctx, cfg.Box)
	if err != nil {
		return err
	}
	n.Box = b
	if n.logs == "" {
		n.logs = filepath.Join(b.Dir(), "logs")
	}
	if err := os.MkdirAll(n.logs, 0o755); err != nil {
		return fmt.Errorf("creating the log directory: %w", err)
	}
	for _, dir := range programs {
		if err := linkPrograms(b, dir, cfg.Box.Binds[dir]); err != nil {
			return err
		}
	}
	if err := configure(b, n.runtime); err != nil {
		return err
	}
	if err := n.prepareBox(ctx); err != nil {
		return err
	}
	if cfg.Prepare == nil {
		return nil
	}
	return cfg.Prepare(ctx, b)
}

// linkPrograms links the programs of a directory into /usr/local/bin of the box.
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

// Close stops all processes of the node and removes the box.
func (n *Node) Close() error {
	if n.Box == nil {
		return nil
	}
	err := n.Box.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	var wait errgroup.Group
	for _, p := range n.processes {
		wait.Go(func() error { <-p.exited; return nil })
	}
	return errors.Join(err, wait.Wait())
}
