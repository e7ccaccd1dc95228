package node

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
)

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
