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

// refusedTries and refusedInterval bound the wait for a server that does not listen yet.
const (
	refusedTries    = 20
	refusedInterval = 5 * time.Millisecond
)

// NewClient returns a client of the server that listens at a path. It connects when it is first used. The
// path is given to the dialer only, as a URL would need it escaped.
func NewClient(path string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, path) }))
	conn, err := grpc.NewClient("passthrough:///localhost", options...)
	if err != nil {
		return nil, fmt.Errorf("dialing %s: %w", path, err)
	}
	return conn, nil
}

// dial connects to a socket. A socket exists before its server listens, so one that has just appeared may
// refuse for a moment.
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
