package node

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
)

// Kubectl runs kubectl as the cluster's admin and returns what it printed.
func (n *Node) Kubectl(ctx context.Context, args ...string) ([]byte, error) {
	return n.run(ctx, nil, "kubectl", args...)
}

// Apply makes the cluster hold the objects of a manifest.
func (n *Node) Apply(ctx context.Context, manifest []byte) error {
	_, err := n.run(ctx, bytes.NewReader(manifest), "kubectl", "apply", "-f", "-")
	return err
}

// ImportImage gives the runtime the images of an archive (docker-archive or oci-archive) on
// this machine.
func (n *Node) ImportImage(ctx context.Context, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("importing an image: %w", err)
	}
	defer f.Close()
	_, err = n.run(ctx, f, "ctr", "--namespace", "k8s.io", "images", "import", "--local", "-")
	if err != nil {
		return fmt.Errorf("importing %s: %w", archive, err)
	}
	return nil
}

// run runs a command in the box and returns its standard output; its standard error goes into
// the error.
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
