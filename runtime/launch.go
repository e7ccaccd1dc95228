package runtime

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Launch configures a short-lived container for diagnosis.
type Launch struct {
	Image    string   // an image on the node; empty for the image of the agent
	Device   string   // name of a CDI device
	Programs []string // files of the node, mounted read-only at the same paths; empty if the image has them
	Idle     []string // command of the container, which must keep running, but end by itself if it is not removed
	Probe    []string // command executed in the running container
}

const (
	// launchTimeout bounds the launch without the removal of its container.
	launchTimeout = 2 * time.Minute
	// probeTimeout bounds the execution of Launch.Probe by the runtime.
	probeTimeout = 30 * time.Second
	// removeTimeout bounds the removal of containers, which also takes place after a cancellation.
	removeTimeout = time.Minute
	// maxRemovals bounds the attempts to remove containers.
	maxRemovals = 3
	// stderrLimit bounds the standard error of Launch.Probe in an error, in bytes.
	stderrLimit = 1024
)

const (
	// launchedLabel marks containers of Launch.
	launchedLabel = "gpucdi.dev/launched"
	// launchIDLabel distinguishes the containers of concurrent calls.
	launchIDLabel = "gpucdi.dev/launch-id"
)

// agentName is the name of the agent's container in deploy/.
const agentName = "gpucdi"

// logName is the name of the log of the container, next to that of the agent. When the kubelet removes a container, it
// removes all files whose paths start with the path of the log. If that is empty, these are the files in the kubelet's
// working directory, which may be the root of the node.
const logName = "doctor.log"

// Paths in /proc and /sys that a container of a pod cannot read or write, from the kubelet.
var (
	maskedPaths = []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// ErrNoAgent means that no agent runs in a pod on this node.
var ErrNoAgent = errors.New("finding the agent's pod: no privileged container named gpucdi is running on this node")

// Launch runs a container in the agent's pod and returns the standard output of l.Probe and the image. Before it returns,
// it removes the container, and those of earlier, interrupted calls that have reached their timeouts. It takes at most
// three minutes.
//
// The kubelet ends pods that it did not create within seconds, but not containers in a pod that it did create.
func (i Info) Launch(ctx context.Context, node host.Root, l Launch) (output []byte, image string, err error) {
	conn, _, err := dial(node, i.Socket)
	if err != nil {
		return nil, "", err
	}
	defer conn.Close()
	return launch(ctx, cri.NewRuntimeServiceClient(conn), i.CgroupParent, l)
}

func launch(ctx context.Context, client cri.RuntimeServiceClient, parent string, l Launch) (output []byte, image string, err error) {
	ctx, cancel := context.WithTimeout(ctx, launchTimeout)
	defer cancel()
	id := rand.Text()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
		defer cancel()
		err = errors.Join(err, removeLaunched(ctx, client, id))
	}()
	agent, err := findAgent(ctx, client)
	if err != nil {
		return nil, "", err
	}
	pod, err := agent.pod(ctx, client, parent)
	if err != nil {
		return nil, "", err
	}
	if l.Image == "" {
		l.Image = agent.image
	}
	container, err := start(ctx, client, agent.sandbox, pod, l.container(id, pod))
	if err != nil {
		return nil, "", fmt.Errorf("starting a container of image %s with %s: %w", l.Image, l.Device, err)
	}
	output, err = probe(ctx, client, container, l.Probe)
	if err != nil {
		return nil, "", fmt.Errorf("running %s in a container of image %s: %w", l.Probe[0], l.Image, err)
	}
	return output, l.Image, nil
}

// agentContainer is the agent's container.
type agentContainer struct {
	image   string
	sandbox string // ID
	logDir  string // directory of its log, a path on the node
}

// findAgent returns the agent's container: the latest one of that name, since two agents run during some rollouts. Any pod
// can have a container of that name, but only those that are trusted on the node have a privileged one.
func findAgent(ctx context.Context, client cri.RuntimeServiceClient) (agentContainer, error) {
	found, err := client.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		State:         &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{LabelContainerName: agentName},
	}})
	if err != nil {
		return agentContainer{}, fmt.Errorf("finding the agent's container: %w", err)
	}
	slices.SortFunc(found.GetContainers(), func(a, b *cri.Container) int { return cmp.Compare(b.GetCreatedAt(), a.GetCreatedAt()) })
	for _, c := range found.GetContainers() {
		status, info, err := verboseStatus(ctx, client, c.GetId())
		if err != nil {
			return agentContainer{}, err
		}
		var container Container
		if err := container.readSpec(info.Spec); err != nil {
			return agentContainer{}, fmt.Errorf("decoding the OCI spec of container %s: %w", c.GetId(), err)
		}
		if !container.Privileged {
			continue
		}
		if !path.IsAbs(status.GetLogPath()) {
			return agentContainer{}, fmt.Errorf("finding a directory for the log: container %s has the log %q", c.GetId(), status.GetLogPath())
		}
		return agentContainer{image: c.GetImage().GetImage(), sandbox: c.GetPodSandboxId(), logDir: path.Dir(status.GetLogPath())}, nil
	}
	return agentContainer{}, ErrNoAgent
}

// pod returns what a further container in the agent's pod requires. parent is the parent of its cgroup, which containerd
// takes from here, so the memory limit of the pod does not apply.
func (a agentContainer) pod(ctx context.Context, client cri.RuntimeServiceClient, parent string) (*cri.PodSandboxConfig, error) {
	response, err := client.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: a.sandbox})
	if err != nil {
		return nil, fmt.Errorf("reading the agent's pod %s: %w", a.sandbox, err)
	}
	return &cri.PodSandboxConfig{
		Metadata:     response.GetStatus().GetMetadata(),
		LogDirectory: a.logDir,
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent: parent,
			SecurityContext: &cri.LinuxSandboxSecurityContext{
				NamespaceOptions: response.GetStatus().GetLinux().GetNamespaces().GetOptions(),
			},
		},
	}, nil
}

// container returns the container to start in a pod.
func (l Launch) container(id string, pod *cri.PodSandboxConfig) *cri.ContainerConfig {
	shared := pod.GetLinux().GetSecurityContext().GetNamespaceOptions()
	config := &cri.ContainerConfig{
		Metadata:   &cri.ContainerMetadata{Name: "doctor-" + id}, // unique in the pod
		Image:      &cri.ImageSpec{Image: l.Image},
		Command:    l.Idle,
		CDIDevices: []*cri.CDIDevice{{Name: l.Device}},
		LogPath:    logName,
		// The kubelet ends containers of an unknown pod.
		Labels: map[string]string{podUID: pod.GetMetadata().GetUid(), launchedLabel: "true", launchIDLabel: id},
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{
			// The agent's pod may have the PID namespace of the node.
			NamespaceOptions: &cri.NamespaceOption{
				Network: shared.GetNetwork(), Ipc: shared.GetIpc(), Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: shared.GetUsernsOptions(),
			},
			MaskedPaths:   maskedPaths,
			ReadonlyPaths: readonlyPaths,
		}},
	}
	for _, program := range l.Programs {
		mount := &cri.Mount{HostPath: program, ContainerPath: path.Clean(program), Readonly: true}
		config.Mounts = append(config.Mounts, mount)
	}
	return config
}

// start creates and starts a container, and returns its ID.
func start(ctx context.Context, client cri.RuntimeServiceClient, sandbox string, pod *cri.PodSandboxConfig, config *cri.ContainerConfig) (string, error) {
	created, err := client.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: sandbox, Config: config, SandboxConfig: pod,
	})
	if err != nil {
		return "", err
	}
	_, err = client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: created.ContainerId})
	return created.ContainerId, err
}

// probe executes a command in a container and returns its standard output.
func probe(ctx context.Context, client cri.RuntimeServiceClient, container string, command []string) ([]byte, error) {
	response, err := client.ExecSync(ctx, &cri.ExecSyncRequest{
		ContainerId: container, Cmd: command, Timeout: int64(probeTimeout.Seconds()),
	})
	if err != nil {
		return nil, err
	}
	if response.ExitCode != 0 {
		return nil, fmt.Errorf("exit code %d: %s", response.ExitCode, host.Printable(string(response.Stderr), stderrLimit))
	}
	return response.Stdout, nil
}

// removeLaunched removes the container of the launch, and those of other launches that must have ended. It tries again if
// another caller is removing the same containers.
func removeLaunched(ctx context.Context, client cri.RuntimeServiceClient, id string) error {
	var errs []error
	for range maxRemovals {
		containers, err := launched(ctx, client, id)
		if err != nil {
			return err
		}
		if len(containers) == 0 {
			return nil
		}
		errs = nil
		for _, container := range containers {
			if err := remove(ctx, client, container.GetId()); err != nil {
				errs = append(errs, fmt.Errorf("removing launched container %s: %w", container.GetId(), err))
			}
		}
	}
	return errors.Join(errs...)
}

// launched returns the container of the launch, and those of other launches that must have ended.
func launched(ctx context.Context, client cri.RuntimeServiceClient, id string) ([]*cri.Container, error) {
	filter := &cri.ContainerFilter{LabelSelector: map[string]string{launchedLabel: "true"}}
	found, err := client.ListContainers(ctx, &cri.ListContainersRequest{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("listing launched containers: %w", err)
	}
	ended := time.Now().Add(-launchTimeout - removeTimeout)
	return slices.DeleteFunc(found.GetContainers(), func(c *cri.Container) bool {
		return c.GetLabels()[launchIDLabel] != id && time.Unix(0, c.GetCreatedAt()).After(ended)
	}), nil
}

// remove kills and removes a container. The removal alone would let CRI-O wait until the deadline for a container that
// ignores SIGTERM.
func remove(ctx context.Context, client cri.RuntimeServiceClient, container string) error {
	_, errStop := client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: container})
	if _, err := client.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: container}); err != nil {
		return errors.Join(errStop, err)
	}
	return nil
}
