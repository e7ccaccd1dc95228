package runtime

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Launch configures a short-lived container for diagnosis.
type Launch struct {
	Image    string   // an image on the node; empty for the image of the agent's pod
	Device   string   // name of a CDI device
	Programs []string // files of the node, mounted read-only at the same paths; empty if the image has them
	Idle     []string // command of the container, which must keep running and may ignore signals
	Probe    []string // command executed in the running container
}

const (
	// maxAttempts bounds the attempts to launch a container. Every two seconds the kubelet stops the pods that it does
	// not manage. It stops a pod without containers immediately, but a container has a grace period of two seconds, in
	// which CRI-O executes no command in it.
	maxAttempts = 8
	// stopTimeout bounds the time until the kubelet has stopped the pod of a failed attempt.
	stopTimeout = 10 * time.Second
	// stopInterval is the time between two checks of whether the pod is stopped.
	stopInterval = 100 * time.Millisecond
	// launchTimeout bounds all attempts and the removals before them.
	launchTimeout = 3 * time.Minute
	// startTimeout bounds the start of a container. CRI-O delays it for two minutes if the kubelet is stopping the
	// pod, which is not stopped until then.
	startTimeout = 10 * time.Second
	// removeDelay is the time between stopping and removing a pod. The kubelet may be stopping it concurrently, and
	// containerd 2.4 panics if the pod of a container is removed meanwhile.
	removeDelay = 5 * time.Second
	// maxRemovals bounds the attempts to remove pods.
	maxRemovals = 3
	// probeTimeout bounds the execution of Launch.Probe by the runtime.
	probeTimeout = 30 * time.Second
	// removeTimeout bounds the removal of pods, which also takes place after a cancellation.
	removeTimeout = time.Minute
	// killed is the exit code of a program that ended with its container by SIGKILL.
	killed = 128 + int32(unix.SIGKILL)
	// stderrLimit bounds the standard error of Launch.Probe in an error, in bytes.
	stderrLimit = 1024
)

const (
	// launchedLabel marks pods and containers of Launch.
	launchedLabel = "gpucdi.dev/launched"
	// launchIDLabel distinguishes the pods of concurrent calls.
	launchIDLabel = "gpucdi.dev/launch-id"
)

var launchLabels = map[string]string{launchedLabel: "true"}

// agentContainer selects the agent's container, by its name in deploy/.
var agentContainer = map[string]string{LabelContainerName: "gpucdi"}

// ErrNoImage means that no image was specified and that no agent runs in a container on this node.
var ErrNoImage = errors.New("finding an image: no container named gpucdi is running on this node")

// Launch runs a container in a new pod and returns the standard output of l.Probe and the image. Before it returns, it
// removes its pods, and pods of earlier, interrupted calls that have reached their timeouts. It takes at most four
// minutes.
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
	if l.Image == "" {
		if l.Image, err = agentImage(ctx, client); err != nil {
			return nil, "", err
		}
	}
	if err := removeLaunched(ctx, client, id); err != nil {
		return nil, "", err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
		defer cancel()
		err = errors.Join(err, removeLaunched(ctx, client, id))
	}()
	for range maxAttempts {
		output, err = launchOnce(ctx, client, parent, id, l)
		if err == nil || errors.As(err, new(finalError)) {
			break
		}
		if !errors.Is(err, errStartTimeout) && !awaitStop(ctx, client, id) {
			break
		}
	}
	return output, l.Image, err
}

// awaitStop waits until no pod of the launch runs, and reports whether that was so within stopTimeout. If it was not, no
// kubelet stops the pods, so the attempt failed for another reason. If it was, the next attempt has almost two seconds
// until the kubelet's next check, instead of a random part of them.
func awaitStop(ctx context.Context, client cri.RuntimeServiceClient, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	for {
		running, err := isRunning(ctx, client, id)
		if err != nil || !running {
			return err == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(stopInterval):
		}
	}
}

// isRunning reports whether a pod of the launch runs.
func isRunning(ctx context.Context, client cri.RuntimeServiceClient, id string) (bool, error) {
	ready, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
		State:         &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY},
		LabelSelector: map[string]string{launchIDLabel: id},
	}})
	return len(ready.GetItems()) > 0, err
}

// finalError is an error that another attempt would not avoid.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

func launchOnce(ctx context.Context, client cri.RuntimeServiceClient, parent, id string, l Launch) ([]byte, error) {
	// The host network does not depend on a CNI plugin.
	namespaces := &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER}
	pod := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "doctor", Namespace: "gpucdi", Uid: rand.Text()},
		Labels:   map[string]string{launchedLabel: "true", launchIDLabel: id},
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    parent,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: namespaces},
		},
	}
	sandbox, err := client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: pod})
	if err != nil {
		return nil, fmt.Errorf("creating a pod: %w", err)
	}
	return runProbe(ctx, client, sandbox.PodSandboxId, pod, l)
}

// runProbe starts the container in its pod and executes Probe in it.
func runProbe(ctx context.Context, client cri.RuntimeServiceClient, sandbox string, pod *cri.PodSandboxConfig, l Launch) ([]byte, error) {
	config := &cri.ContainerConfig{
		Metadata:   &cri.ContainerMetadata{Name: "doctor"},
		Image:      &cri.ImageSpec{Image: l.Image},
		Command:    l.Idle,
		CDIDevices: []*cri.CDIDevice{{Name: l.Device}},
		// Without the UID of a pod, the kubelet would stop only the pod and not the container.
		Labels: map[string]string{podUID: pod.Metadata.Uid, launchedLabel: "true"},
		Linux: &cri.LinuxContainerConfig{
			SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: pod.Linux.SecurityContext.NamespaceOptions},
		},
	}
	for _, program := range l.Programs {
		mount := &cri.Mount{HostPath: program, ContainerPath: path.Clean(program), Readonly: true}
		config.Mounts = append(config.Mounts, mount)
	}
	container, err := client.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: sandbox, Config: config, SandboxConfig: pod,
	})
	if err != nil {
		err = fmt.Errorf("creating a container of image %s with %s: %w", l.Image, l.Device, err)
		// If the kubelet had caused the error by stopping the pod, the pod would not run any more.
		if running, _ := isRunning(ctx, client, pod.Labels[launchIDLabel]); running {
			err = finalError{err}
		}
		return nil, err
	}
	if err := start(ctx, client, container.ContainerId); err != nil {
		return nil, fmt.Errorf("starting a container of image %s with %s: %w", l.Image, l.Device, err)
	}
	response, err := client.ExecSync(ctx, &cri.ExecSyncRequest{
		ContainerId: container.ContainerId, Cmd: l.Probe, Timeout: int64(probeTimeout.Seconds()),
	})
	if err != nil {
		return nil, fmt.Errorf("running %s in a container of image %s: %w", l.Probe[0], l.Image, err)
	}
	if code := response.ExitCode; code != 0 {
		err := fmt.Errorf("running %s in a container of image %s: exit code %d: %s",
			l.Probe[0], l.Image, code, host.Printable(string(response.Stderr), stderrLimit))
		if code != killed {
			err = finalError{err}
		}
		return nil, err
	}
	return response.Stdout, nil
}

// errStartTimeout means that the runtime has not started the container within startTimeout.
var errStartTimeout = fmt.Errorf("not started within %s", startTimeout)

func start(ctx context.Context, client cri.RuntimeServiceClient, container string) error {
	start, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	_, err := client.StartContainer(start, &cri.StartContainerRequest{ContainerId: container})
	if err != nil && start.Err() != nil && ctx.Err() == nil {
		return errors.Join(errStartTimeout, err)
	}
	return err
}

// agentImage returns the image of the agent's container.
func agentImage(ctx context.Context, client cri.RuntimeServiceClient) (string, error) {
	found, err := client.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		State:         &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
		LabelSelector: agentContainer,
	}})
	if err != nil {
		return "", fmt.Errorf("finding the agent's container: %w", err)
	}
	if len(found.Containers) == 0 {
		return "", ErrNoImage
	}
	return found.Containers[0].Image.Image, nil
}

// removeLaunched stops and removes the pods of the launch, and those of other launches that must have ended. The kubelet
// may be stopping them concurrently, so that containers are gone when they are stopped here. Then it tries again.
func removeLaunched(ctx context.Context, client cri.RuntimeServiceClient, id string) error {
	var errs []error
	for range maxRemovals {
		sandboxes, err := launched(ctx, client, id)
		if err != nil || len(sandboxes) == 0 {
			return err
		}
		if errs = removePods(ctx, client, sandboxes); len(errs) == 0 {
			return nil
		}
	}
	return errors.Join(errs...)
}

// launched returns the pods of the launch, and those of other launches that must have ended.
func launched(ctx context.Context, client cri.RuntimeServiceClient, id string) ([]*cri.PodSandbox, error) {
	filter := &cri.PodSandboxFilter{LabelSelector: launchLabels}
	found, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("listing launched pods: %w", err)
	}
	ended := time.Now().Add(-launchTimeout - removeTimeout)
	return slices.DeleteFunc(found.Items, func(s *cri.PodSandbox) bool {
		return s.Labels[launchIDLabel] != id && time.Unix(0, s.CreatedAt).After(ended)
	}), nil
}

func removePods(ctx context.Context, client cri.RuntimeServiceClient, sandboxes []*cri.PodSandbox) (errs []error) {
	each := func(verb string, do func(id string) error) {
		for _, sandbox := range sandboxes {
			if err := do(sandbox.Id); err != nil {
				errs = append(errs, fmt.Errorf("%s launched pod %s: %w", verb, sandbox.Id, err))
			}
		}
	}
	each("killing the containers of", func(id string) error { return killContainers(ctx, client, id) })
	each("stopping", func(id string) error {
		_, err := client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
		return err
	})
	select {
	case <-ctx.Done():
		return append(errs, ctx.Err())
	case <-time.After(removeDelay):
	}
	each("removing", func(id string) error {
		_, err := client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
	return errs
}

// killContainers kills the containers of a pod. They may ignore SIGTERM, and CRI-O would wait for them without a limit
// when it stops the pod.
func killContainers(ctx context.Context, client cri.RuntimeServiceClient, sandbox string) error {
	found, err := client.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{PodSandboxId: sandbox}})
	if err != nil {
		return err
	}
	var errs []error
	for _, container := range found.Containers {
		_, err := client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: container.Id})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
