package kubelet

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

// kubeletConn returns a connection to one of the kubelet's sockets, which is made
// when it is first used. The path is given to the dialer only, as a URL would
// need it escaped.
func kubeletConn(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, socket) }))
	if err != nil {
		return nil, fmt.Errorf("dialing %s: %w", socket, err)
	}
	return conn, nil
}

// dial connects to a socket of the kubelet's. It has a name before it listens,
// so one that has just appeared may refuse for a moment.
func dial(ctx context.Context, socket string) (net.Conn, error) {
	var d net.Dialer
	for tries := 0; ; tries++ {
		conn, err := d.DialContext(ctx, "unix", socket)
		if !errors.Is(err, syscall.ECONNREFUSED) || tries == 20 {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}
