package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/test/box"
	nodebox "github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/node/tools"
	"github.com/gpucdi/gpucdi/test/nvidia"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// gpuReplicas is the number of replicas of each of the eight GPUs: enough for burstSize pods.
const gpuReplicas = 16

// nvidiaHandler is the RuntimeClass of NVIDIA's container runtime, and its handler in containerd.
const nvidiaHandler = "nvidia"

const runtimeClass = `apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: ` + nvidiaHandler + `}
handler: ` + nvidiaHandler + "\n"

// logLimit bounds the pod descriptions and the plugin's log in an error, in bytes each.
const logLimit = 4000

// A stack is a device plugin or DRA driver, and the runtime setup that injects its devices into containers.
type stack struct {
	name    string
	agent   bool   // the program is gpucdi, which reports its readiness and metrics
	class   string // RuntimeClass of pods; empty: the default runtime, runc
	hooks   bool   // containers have hooks
	devices int    // number of allocatable devices; 0: pods request none, or use claims
	claims  bool   // pods get their devices through ResourceClaims
	request object // fields of the request of a claim; empty: one GPU
	command []string
}

// gpuCount is the number of GPUs of the node, sharedCount the number of their replicas.
const (
	gpuCount    = 8
	sharedCount = gpuReplicas * gpuCount
)

// gpuResource is the resource of all stacks, so only one plugin can run at a time. gpucdi would also drain devices that
// pods hold through another plugin.
const gpuResource = "nvidia.com/gpu"

// Directories of the programs in the box.
const (
	gpucdiDir  = "/opt/gpucdi"
	pluginDir  = "/opt/nvidia-device-plugin"
	runtimeDir = "/opt/nvidia-container-runtime"
	toolkitDir = "/opt/nvidia-container-toolkit"
	configDir  = "/etc/bench"
)

// gpucdiStack is gpucdi with the container runtime's CDI support.
func gpucdiStack() stack {
	return stack{name: "gpucdi", devices: sharedCount,
		command: []string{"env", "GOMAXPROCS=1", gpucdiDir + "/gpucdi", "serve", "--config", configDir + "/gpucdi.yaml"}}
}

// nvidiaStack is NVIDIA's plugin with the default strategy of its Helm chart, and NVIDIA's container runtime in its
// default mode, which generates a CDI spec for each container.
func nvidiaStack() stack {
	return stack{name: "nvidia", class: nvidiaHandler, hooks: true, devices: sharedCount,
		command: []string{"env", noHealthChecks, pluginDir + "/nvidia-device-plugin", "--device-list-strategy=envvar", "--config-file=" + configDir + "/nvidia.yaml"}}
}

// nvidiaCDIStack is NVIDIA's plugin with CDI: the container runtime's CDI support applies the plugin's spec with
// NVIDIA's hooks.
func nvidiaCDIStack() stack {
	return stack{name: "nvidia-cdi", hooks: true, devices: sharedCount,
		command: append(append([]string{"env", noHealthChecks}, nvidia.Plugin(pluginDir, "/")...), "--config-file="+configDir+"/nvidia.yaml")}
}

// noGPUStack has no devices; its pods show the time that a pod without a GPU takes.
func noGPUStack() stack { return stack{name: "no-gpu", command: []string{"sleep", "infinity"}} }

// podNode is a node in a box on which one device plugin at a time runs as a process.
type podNode struct {
	*nodebox.Node
	dir    string
	driver *simdriver.Driver
	api    *podAPI
	events *containerEvents
}

// startPodNode starts a node with eight simulated GPUs.
func (b *bench) startPodNode(ctx context.Context) (n *podNode, err error) {
	if err := tools.InstallPackages(ctx); err != nil {
		return nil, err
	}
	// The directory contains container images, and /tmp may be a tmpfs.
	dir, err := os.MkdirTemp("/var/tmp", "gpucdi-bench-")
	if err != nil {
		return nil, fmt.Errorf("creating a directory: %w", err)
	}
	n = &podNode{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	n.Node, err = nodebox.Start(ctx, nodebox.Config{
		Box: box.Config{Dir: filepath.Join(dir, "box"), Simulated: true, Binds: map[string]string{
			filepath.Dir(b.gpucdi): gpucdiDir, b.nvidiaPlugin: pluginDir, b.nvidiaRuntime: runtimeDir,
			filepath.Dir(b.nvidiaCTK): toolkitDir, b.nvidiaDriver: driverDir,
		}},
		Runtime: nodebox.Containerd().WithHandler(nvidiaHandler, runtimeDir+"/nvidia-container-runtime"),
		Prepare: n.prepare,
	})
	if err != nil {
		return n, err
	}
	if err := n.Apply(ctx, []byte(runtimeClass)); err != nil {
		return n, err
	}
	if n.api, err = n.startPodAPI(ctx); err != nil {
		return n, err
	}
	n.events, err = watchContainers(ctx, n.RuntimeSocket())
	return n, err
}

func (n *podNode) close() error {
	var err error
	if n.events != nil {
		err = n.events.close()
	}
	if n.Node != nil {
		err = errors.Join(err, n.Close())
	}
	return errors.Join(err, os.RemoveAll(n.dir))
}

// prepare installs the driver, and the configuration of the stacks.
func (n *podNode) prepare(ctx context.Context, b *box.Box) (err error) {
	if n.driver, err = simdriver.Install(b.Root(), simdriver.H100x8()); err != nil {
		return err
	}
	for name, text := range map[string]string{
		configDir + "/gpucdi.yaml": nodeConfig + fmt.Sprintf("resources: [{name: %s, replicas: %d}]\n", gpuResource, gpuReplicas),
		configDir + "/dra.yaml":    nodeConfig + "allocation: {mode: dra}\n",
		configDir + "/parts.yaml":  nodeConfig + fmt.Sprintf("resources: [{name: %s, mode: dra, share: memory}]\n", gpuResource),
		configDir + "/nvidia.yaml": nvidia.TimeSlicing(gpuResource, gpuReplicas),
		nvidia.RuntimeConfigFile:   nvidia.RuntimeConfig,
		// See forbidDeviceFiles.
		"/proc/driver/nvidia/params": "ModifyDeviceFiles: 0\n",
	} {
		if err := os.MkdirAll(filepath.Dir(b.Path(name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(b.Path(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	for _, name := range []string{"nvidia-ctk", "nvidia-cdi-hook"} { // specs refer to hooks by their default paths
		if err := os.Symlink(toolkitDir+"/"+name, b.Path("/usr/bin/"+name)); err != nil {
			return err
		}
	}
	// NVIDIA's programs first search the ld.so.cache.
	if out, err := b.Command(ctx, "ldconfig").CombinedOutput(); err != nil {
		return fmt.Errorf("running ldconfig: %w\n%s", err, out)
	}
	return nil
}

// log returns the path of the log of a stack's plugin.
func (n *podNode) log(s stack) string { return filepath.Join(n.dir, s.name+".log") }

// diagnostics returns the state of the node and of the pods, and the log of a stack's plugin.
func (n *podNode) diagnostics(ctx context.Context, s stack) []byte {
	state, _ := n.Kubectl(ctx, "get", "node", nodebox.Name, "-o", "jsonpath={.status.allocatable}")
	pods, _ := n.Kubectl(ctx, "describe", "pods")
	log, _ := os.ReadFile(n.log(s))
	return slices.Concat(state, []byte("\n"), pods[:min(len(pods), logLimit)], log[max(0, len(log)-logLimit):])
}

// running is the program of a stack, which runs in the box.
type running struct {
	node *podNode
	cmd  *exec.Cmd
}

// run starts the program of a stack in the box.
func (n *podNode) run(ctx context.Context, s stack) (*running, error) {
	log, err := os.Create(n.log(s))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := n.Box.Command(context.WithoutCancel(ctx), s.command[0], s.command[1:]...) // until stop
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", s.name, err)
	}
	return &running{n, cmd}, nil
}

// serve starts the plugin of a stack in the box, and waits until its devices are allocatable.
func (n *podNode) serve(ctx context.Context, s stack) (*running, error) {
	r, err := n.run(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := n.awaitDevices(ctx, s.devices); err != nil {
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, n.diagnostics(ctx, s)), r.stop(ctx))
	}
	return r, nil
}

// stop stops the program, and waits until its devices are not allocatable.
func (r *running) stop(ctx context.Context) error {
	err := errors.Join(terminate(r.cmd.Process), exited(r.cmd.Wait()))
	return errors.Join(err, r.node.awaitDevices(ctx, 0))
}

// memory returns the memory usage of the program and its children.
func (r *running) memory() (memory, error) {
	pids, err := processesOf(r.cmd.Process.Pid) // cmd is boxinit, whose only child is the program
	if err != nil {
		return memory{}, err
	}
	if len(pids) != 2 {
		return memory{}, fmt.Errorf("%s has %d processes, want 2", r.cmd, len(pids))
	}
	if pids, err = processesOf(pids[1]); err != nil {
		return memory{}, err
	}
	return memoryOf(pids)
}

// awaitDevices waits until a number of devices is allocatable.
func (n *podNode) awaitDevices(ctx context.Context, count int) error {
	path := "jsonpath={.status.allocatable['" + strings.ReplaceAll(gpuResource, ".", `\.`) + "']}"
	return poll(ctx, fmt.Sprintf("%d allocatable devices", count), 2*time.Minute, func() (bool, error) {
		got, err := n.Kubectl(ctx, "get", "node", nodebox.Name, "-o", path)
		return string(got) == strconv.Itoa(count) || count == 0 && len(got) == 0, err
	})
}
