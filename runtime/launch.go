package runtime

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Launch is a container that somebody wants for a moment.
type Launch struct {
	Image    string   // that is on the node; empty: the one that the agent's pod runs from
	Device   string   // the CDI device that the container gets
	Programs []string // files of the node, mounted at their paths; empty: the image has them
	Idle     []string // command that keeps the container running, whatever signal it gets
	Probe    []string // command that is run in it then
}

const (
	// launchTries is how often a container is launched at the most. The kubelet
	// looks every two seconds for pods that are not its own, and ends them: one
	// without a container at once, a container two seconds after it was asked to
	// end. So the first try may come at a bad moment, and the next comes at a good one.
	launchTries = 3
	// startWithin is what starting a container may take. One whose pod the kubelet
	// is ending in CRI-O starts when that is over, after two minutes.
	startWithin = 10 * time.Second
	// settling is the time between the end of a pod and its removal: the kubelet
	// may be ending it as well, and containerd 2.4 panics when a container that
	// is being stopped has lost its pod.
	settling = 5 * time.Second
	// lookWithin is what looking may take.
	lookWithin = 30 * time.Second
	// removeWithin is what removing a pod may take, even when nobody waits any more.
	removeWithin = time.Minute
)

// launchedLabel tells what is launched here from all else that the runtime has.
const launchedLabel = "gpucdi.dev/launched"

var launchLabels = map[string]string{launchedLabel: "true"}

// podUID is the label by which the kubelet finds a container's pod: without it,
// it would end the pod and not care for the container.
const podUID = "io.kubernetes.pod.uid"

// agentContainer is how the kubelet labels the agent's container, for the name
// that it has in deploy/.
var agentContainer = map[string]string{"io.kubernetes.container.name": "gpucdi"}

// ErrNoImage says that no image was named, and that there is no agent's to take.
var ErrNoImage = errors.New("no container called gpucdi runs here whose image could be taken")

// Launch starts the container in a pod of its own, and returns what Probe printed
// and the image. Nothing is left of it afterwards, nor of one that was launched
// before by somebody who could not remove it.
func (i Info) Launch(ctx context.Context, node host.Root, l Launch) (printed []byte, image string, err error) {
	conn, _, err := dial(node, i.Socket)
	if err != nil {
		return nil, "", err
	}
	defer conn.Close()
	return launch(ctx, cri.NewRuntimeServiceClient(conn), i.CgroupParent, l)
}

func launch(ctx context.Context, client cri.RuntimeServiceClient, parent string, l Launch) (printed []byte, image string, err error) {
	if l.Image == "" {
		if l.Image, err = agentImage(ctx, client); err != nil {
			return nil, "", err
		}
	}
	if err := removeLaunched(ctx, client); err != nil {
		return nil, "", err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeWithin)
		defer cancel()
		err = errors.Join(err, removeLaunched(ctx, client))
	}()
	for range launchTries {
		printed, err = try(ctx, client, parent, l)
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	return printed, l.Image, err
}

func try(ctx context.Context, client cri.RuntimeServiceClient, parent string, l Launch) ([]byte, error) {
	// No network of its own, so that none has to be there.
	namespaces := &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER}
	pod := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "doctor", Namespace: "gpucdi", Uid: rand.Text()},
		Labels:   launchLabels,
		Linux: &cri.LinuxPodSandboxConfig{
			CgroupParent:    parent,
			SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: namespaces},
		},
	}
	sandbox, err := client.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: pod})
	if err != nil {
		return nil, fmt.Errorf("making a pod: %w", err)
	}
	return look(ctx, client, sandbox.PodSandboxId, pod, l)
}

// look starts the container in its pod, and looks.
func look(ctx context.Context, client cri.RuntimeServiceClient, sandbox string, pod *cri.PodSandboxConfig, l Launch) ([]byte, error) {
	config := &cri.ContainerConfig{
		Metadata:   &cri.ContainerMetadata{Name: "doctor"},
		Image:      &cri.ImageSpec{Image: l.Image},
		Command:    l.Idle,
		CDIDevices: []*cri.CDIDevice{{Name: l.Device}},
		Labels:     map[string]string{podUID: pod.Metadata.Uid, launchedLabel: "true"},
		Linux: &cri.LinuxContainerConfig{
			SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: pod.Linux.SecurityContext.NamespaceOptions},
		},
	}
	for _, program := range l.Programs {
		config.Mounts = append(config.Mounts, &cri.Mount{HostPath: program, ContainerPath: path.Clean(program), Readonly: true})
	}
	container, err := client.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: sandbox, Config: config, SandboxConfig: pod})
	if err != nil {
		return nil, fmt.Errorf("making a container of the image %s with %s: %w", l.Image, l.Device, err)
	}
	if err := start(ctx, client, container.ContainerId); err != nil {
		return nil, fmt.Errorf("starting a container of the image %s with %s: %w", l.Image, l.Device, err)
	}
	run, err := client.ExecSync(ctx, &cri.ExecSyncRequest{
		ContainerId: container.ContainerId, Cmd: l.Probe, Timeout: int64(lookWithin.Seconds()),
	})
	if err != nil {
		return nil, fmt.Errorf("running %s in a container of the image %s: %w", l.Probe[0], l.Image, err)
	}
	if run.ExitCode != 0 {
		return nil, fmt.Errorf("%s ends in a container of the image %s with %d: %s", l.Probe[0], l.Image, run.ExitCode, run.Stderr)
	}
	return run.Stdout, nil
}

func start(ctx context.Context, client cri.RuntimeServiceClient, container string) error {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	_, err := client.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: container})
	return err
}

// agentImage returns the image that the agent's container runs from.
func agentImage(ctx context.Context, client cri.RuntimeServiceClient) (string, error) {
	found, err := client.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		State:         &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
		LabelSelector: agentContainer,
	}})
	if err != nil {
		return "", fmt.Errorf("looking for the agent's container: %w", err)
	}
	if len(found.Containers) == 0 {
		return "", ErrNoImage
	}
	return found.Containers[0].Image.Image, nil
}

// killLaunched ends the containers of these pods. They do not heed being asked to,
// and CRI-O, when it ends a pod, waits for that as long as the caller does.
func killLaunched(ctx context.Context, client cri.RuntimeServiceClient) error {
	found, err := client.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: launchLabels}})
	if err != nil {
		return fmt.Errorf("looking for containers that were launched: %w", err)
	}
	var errs []error
	for _, container := range found.Containers {
		if _, err := client.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: container.Id}); err != nil {
			errs = append(errs, fmt.Errorf("ending the container %s that was launched: %w", container.Id, err))
		}
	}
	return errors.Join(errs...)
}

// removeLaunched ends and removes all pods that were launched here.
func removeLaunched(ctx context.Context, client cri.RuntimeServiceClient) error {
	found, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: launchLabels}})
	if err != nil {
		return fmt.Errorf("looking for pods that were launched: %w", err)
	}
	if len(found.Items) == 0 {
		return nil
	}
	errs := []error{killLaunched(ctx, client)}
	each := func(doing string, do func(id string) error) {
		for _, sandbox := range found.Items {
			if err := do(sandbox.Id); err != nil {
				errs = append(errs, fmt.Errorf("%s the pod %s that was launched: %w", doing, sandbox.Id, err))
			}
		}
	}
	each("ending", func(id string) error {
		_, err := client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
		return err
	})
	select {
	case <-ctx.Done():
		return errors.Join(append(errs, ctx.Err())...)
	case <-time.After(settling):
	}
	each("removing", func(id string) error {
		_, err := client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
	return errors.Join(errs...)
}
