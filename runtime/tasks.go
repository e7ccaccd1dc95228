package runtime

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/services/namespaces/v1"
	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// namespaceHeader is the gRPC metadata key that selects a containerd namespace.
const namespaceHeader = "containerd-namespace"

// listContainerd lists the containers with an active task, in all namespaces.
func listContainerd(ctx context.Context, conn *grpc.ClientConn) ([]Container, error) {
	all, err := namespaces.NewNamespacesClient(conn).List(ctx, &namespaces.ListNamespacesRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing namespaces: %w", err)
	}
	var running []Container
	for _, namespace := range all.GetNamespaces() {
		name := namespace.GetName()
		listed, err := listNamespace(metadata.AppendToOutgoingContext(ctx, namespaceHeader, name), conn, name)
		if err != nil {
			return nil, fmt.Errorf("namespace %s: %w", name, err)
		}
		running = append(running, listed...)
	}
	return running, nil
}

func listNamespace(ctx context.Context, conn *grpc.ClientConn, namespace string) ([]Container, error) {
	active, err := activeTasks(ctx, conn)
	if err != nil || len(active) == 0 {
		return nil, err
	}
	client := containers.NewContainersClient(conn)
	var running []Container
	for id, pid := range active { // one by one, since all specs together could exceed any limit
		response, err := client.Get(ctx, &containers.GetContainerRequest{ID: id}, grpc.MaxCallRecvMsgSize(specLimit))
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("getting container %s: %w", id, err)
		}
		c := response.GetContainer()
		running, err = appendContainer(running, Container{Namespace: namespace, ID: id, PID: pid}, c.GetLabels(), c.GetSpec().GetValue())
		if err != nil {
			return nil, err
		}
	}
	return running, nil
}

// specLimit bounds a container with its spec, in bytes. An environment can have 2 MiB, and escaping in JSON can
// multiply its size by six. Both the spec and the CRI metadata contain it.
const specLimit = 64 << 20

// activeTasks returns the PIDs of the tasks that have not stopped, by container ID.
func activeTasks(ctx context.Context, conn *grpc.ClientConn) (map[string]int, error) {
	response, err := tasks.NewTasksClient(conn).List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing tasks: %w", err)
	}
	active := map[string]int{}
	for _, process := range response.GetTasks() {
		if process.GetStatus() != task.Status_STOPPED {
			active[process.GetID()] = int(process.GetPid())
		}
	}
	return active, nil
}
