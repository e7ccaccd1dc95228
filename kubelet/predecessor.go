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

	"github.com/gpucdi/gpucdi/internal/unixgrpc"
)

// reminder is how often AwaitPredecessor tells that it still waits.
const reminder = time.Minute

// AwaitPredecessor waits until no other agent of the node serves a resource in a device-plugins directory,
// or ctx ends. Of two, the kubelet takes the one that registered last, and marks the devices unhealthy for
// good when that one ends, although the other is still there. waiting is told the other one's socket, once a
// minute.
func AwaitPredecessor(ctx context.Context, dir string, waiting func(socket string)) error {
	for ctx.Err() == nil {
		socket, err := served(ctx, dir)
		if socket == "" || err != nil {
			return err
		}
		waiting(socket)
		if !awaitEnd(ctx, socket) {
			select {
			case <-ctx.Done():
			case <-time.After(pollInterval):
			}
		}
	}
	return ctx.Err()
}

// served returns a socket of ours that some process listens on; empty if there is none.
func served(ctx context.Context, dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("looking for another agent: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if anyOfOurs(e) && serves(ctx, path) {
			return path, nil
		}
	}
	return "", nil
}

// awaitEnd waits until the gRPC server at a socket ends, for a reminder at most. It returns false if that
// cannot be told.
func awaitEnd(ctx context.Context, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, reminder)
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
