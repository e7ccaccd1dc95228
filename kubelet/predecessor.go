package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/gpucdi/gpucdi/internal/sockets"
	"github.com/gpucdi/gpucdi/internal/unixgrpc"
)

// pollInterval is the interval between checks of a socket that has a listener, but no gRPC server.
const pollInterval = time.Second

// waitingInterval is the interval at which AwaitPredecessor reports that it is still waiting.
const waitingInterval = time.Minute

// AwaitPredecessor waits until no other agent serves a resource in the device-plugins directory dir, or ctx ends. If
// two agents serve a resource, the kubelet uses the one that registered last. When one of them ends, a kubelet up to
// 1.36 marks all devices unhealthy, even if the other one is still running. waiting is called with the other agent's
// socket, and again each minute.
func AwaitPredecessor(ctx context.Context, dir string, waiting func(socket string)) error {
	var reported string
	var at time.Time
	for ctx.Err() == nil {
		socket, err := activeAgentSocket(ctx, dir)
		if socket == "" || err != nil {
			return err
		}
		if socket != reported || time.Since(at) >= waitingInterval {
			waiting(socket)
			reported, at = socket, time.Now()
		}
		if !awaitEnd(ctx, socket) {
			select {
			case <-ctx.Done():
			case <-time.After(pollInterval):
			}
		}
	}
	return ctx.Err()
}

// activeAgentSocket returns the path of an agent's socket with a listener; empty if there is none.
func activeAgentSocket(ctx context.Context, dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("finding another agent: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if isAgentSocket(e) && sockets.HasListener(ctx, path) {
			return path, nil
		}
	}
	return "", nil
}

// awaitEnd waits for the gRPC server at a socket to end, for at most waitingInterval. It returns false if it could not
// connect and therefore cannot detect the end.
func awaitEnd(ctx context.Context, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, waitingInterval)
	defer cancel()
	conn, err := unixgrpc.NewClient(socket)
	if err != nil {
		return false
	}
	defer conn.Close()
	conn.Connect()
	for ready := false; ; {
		state := conn.GetState()
		switch {
		case state == connectivity.Ready:
			ready = true
		case ready:
			return true
		case state == connectivity.TransientFailure:
			return false
		}
		if !conn.WaitForStateChange(ctx, state) {
			return ready
		}
	}
}
