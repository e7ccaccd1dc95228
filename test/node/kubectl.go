package node

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
)

// apiServer is the address of the API server in the box, for the components on the node.
const apiServer = "127.0.0.1:443"

// adminConfig is the kubeconfig of the cluster's admin, a path in the box.
const adminConfig = "/root/.kube/config"

// Kubectl runs kubectl as the cluster's admin and returns its stdout.
func (n *Node) Kubectl(ctx context.Context, args ...string) ([]byte, error) {
	return n.run(ctx, nil, "kubectl", args...)
}

// Apply applies a manifest as the cluster's admin.
func (n *Node) Apply(ctx context.Context, manifest []byte) error {
	_, err := n.run(ctx, bytes.NewReader(manifest), "kubectl", "apply", "-f", "-")
	return err
}

// run runs a command in the box and returns its stdout. The error contains its stderr.
func (n *Node) run(ctx context.Context, stdin io.Reader, name string, args ...string) ([]byte, error) {
	cmd := n.Box.Command(ctx, name, args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = stdin, &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// Expose forwards a port on the machine's loopback interface to the API server, until the box ends. It returns a
// kubeconfig of the cluster's admin that kubectl and Helm can use outside of the box.
func (n *Node) Expose(ctx context.Context) (kubeconfig []byte, err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("exposing the API server: %w", err)
	}
	defer listener.Close()
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		return nil, fmt.Errorf("exposing the API server: %w", err)
	}
	defer socket.Close()
	if err := n.startCommand("forward", n.Box.Forward(context.WithoutCancel(ctx), socket, apiServer)); err != nil {
		return nil, err
	}
	inside, err := os.ReadFile(n.Box.Path(adminConfig))
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of the admin: %w", err)
	}
	return bytes.ReplaceAll(inside, []byte(apiServer), []byte(listener.Addr().String())), nil
}
