package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

// Runtime is a container runtime of a node. Its configuration adapts it to a machine that may lack capabilities and
// cannot pull images; the CDI settings are the defaults.
type Runtime struct {
	// Name is the name of its program and of its log.
	Name string
	// Config is the path of its configuration in the box.
	Config string

	tool     tools.Tool
	socket   string
	settings string
	scripts  map[string]string // scripts that the configuration refers to, by path
	ready    []string          // a command that succeeds once the runtime serves requests
	load     []string          // a command that imports an image archive from stdin
	bundles  string            // path of OCI bundles, with %s for the container ID
}

// Containerd returns containerd 2.4.
func Containerd() Runtime {
	return containerd(tools.Containerd, fmt.Sprintf(`version = 3

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = %q

[plugins.'io.containerd.cri.v1.runtime']
# Without CAP_SYS_RESOURCE a process cannot have a lower oom_score_adj than containerd.
restrict_oom_score_adj = true
`, images.PauseName))
}

// Containerd17 returns containerd 1.7, which disables CDI by default.
func Containerd17() Runtime {
	return containerd(tools.Containerd17, fmt.Sprintf(`version = 2

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = %q
# Without CAP_SYS_RESOURCE a process cannot have a lower oom_score_adj than containerd.
restrict_oom_score_adj = true
`, images.PauseName))
}

func containerd(tool tools.Tool, settings string) Runtime {
	return Runtime{
		Name: "containerd", Config: "/etc/containerd/config.toml",
		tool: tool, socket: "/run/containerd/containerd.sock", settings: settings,
		ready:   []string{"ctr", "version"},
		load:    []string{"ctr", "--namespace", "k8s.io", "images", "import", "--local", "-"},
		bundles: "/run/containerd/io.containerd.runtime.v2.task/k8s.io/%s",
	}
}

// WithHandler returns r, which must be Containerd, with an additional OCI runtime, for pods whose RuntimeClass has this
// handler. program is the path of the OCI runtime in the box; its command line must be compatible with runc.
func (r Runtime) WithHandler(handler, program string) Runtime {
	r.settings += fmt.Sprintf(`
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.%s]
runtime_type = 'io.containerd.runc.v2'
options = {BinaryName = %q}
`, handler, program)
	return r
}

// startRuntime starts the container runtime and imports the images.
func (n *Node) startRuntime(ctx context.Context, archives []string) error {
	if err := n.StartRuntime(ctx); err != nil {
		return err
	}
	for _, archive := range archives {
		if err := n.ImportImage(ctx, archive); err != nil {
			return err
		}
	}
	return nil
}

// StartRuntime starts the container runtime and waits until it serves requests.
func (n *Node) StartRuntime(ctx context.Context) error {
	name := n.runtime.Name
	if err := n.start(ctx, name); err != nil {
		return err
	}
	return n.await(ctx, name, func(ctx context.Context) error {
		_, err := n.run(ctx, nil, n.runtime.ready[0], n.runtime.ready[1:]...)
		return err
	}, name)
}

// RestartRuntime stops the container runtime and starts it again. Pods keep running.
func (n *Node) RestartRuntime(ctx context.Context) error {
	if err := n.stop(ctx, n.runtime.Name); err != nil {
		return err
	}
	return n.StartRuntime(ctx)
}

// ImportImage imports the images of a docker-archive on this machine into the runtime.
func (n *Node) ImportImage(ctx context.Context, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("importing an image: %w", err)
	}
	defer f.Close()
	_, err = n.run(ctx, f, n.runtime.load[0], n.runtime.load[1:]...)
	if err != nil {
		return fmt.Errorf("importing %s: %w", archive, err)
	}
	return nil
}

// RuntimeSocket returns the path of the runtime's CRI socket outside of the box.
func (n *Node) RuntimeSocket() string { return n.Box.Path(n.runtime.socket) }

// Spec returns the OCI spec of a running container. containerID is from the pod's status.
func (n *Node) Spec(containerID string) (*specs.Spec, error) {
	_, id, _ := strings.Cut(containerID, "://")
	data, err := os.ReadFile(n.Box.Path(filepath.Join(fmt.Sprintf(n.runtime.bundles, path.Base(id)), "config.json")))
	if err != nil {
		return nil, fmt.Errorf("reading the OCI spec of %s: %w", containerID, err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("reading the OCI spec of %s: %w", containerID, err)
	}
	return &spec, nil
}
