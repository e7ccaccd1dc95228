// Package unixgrpc connects gRPC clients to Unix sockets.
package unixgrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// refusedTries and refusedInterval bound the wait for a server that is not listening yet.
const (
	refusedTries    = 20
	refusedInterval = 5 * time.Millisecond
)

// NewClient returns a client of the server that listens on the Unix socket path. It connects on the first call.
func NewClient(path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	// The dialer gets the path directly, because it would have to be escaped in a target URI.
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, path) }))
	conn, err := grpc.NewClient("passthrough:///localhost", options...)
	if err != nil {
		return nil, fmt.Errorf("creating client for %s: %w", path, err)
	}
	return conn, nil
}

// dial connects to a socket. It retries refused connections for a moment, because a server creates its socket before it
// listens.
func dial(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	for tries := 0; ; tries++ {
		conn, err := d.DialContext(ctx, "unix", path)
		if !errors.Is(err, syscall.ECONNREFUSED) || tries == refusedTries {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(refusedInterval):
		}
	}
}
