package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// apiServer is the address of the API server in the box, for the components on the node.
const apiServer = "127.0.0.1:443"

// adminConfig is the path in the box of the kubeconfig of the cluster's admin, who is root there.
const (
	adminHome   = "/root"
	adminConfig = adminHome + "/.kube/config"
)

// Kubectl runs kubectl as the cluster's admin and returns its stdout. The error contains its stderr. The first argument is
// the command, one of newKubectl; the only global flag is --namespace.
//
// kubectl runs in this process: tests call it thousands of times, and starting a program takes most of the CPU time of
// a call. If ctx is canceled, Kubectl returns immediately, and the command continues in the background. Commands that
// exit the process themselves, such as auth can-i, must be run in the box.
func (n *Node) Kubectl(ctx context.Context, args ...string) ([]byte, error) {
	type result struct {
		out []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := runKubectl(ctx, n.kubectl, args)
		done <- result{out, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return r.out, fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), r.err)
		}
		return r.out, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), ctx.Err())
	}
}

// Apply applies a manifest as the cluster's admin.
func (n *Node) Apply(ctx context.Context, manifest []byte) error {
	file, err := os.CreateTemp(n.Box.Dir(), "manifest-*.yaml") // kubectl would read "-" from this process's stdin
	if err != nil {
		return fmt.Errorf("writing a manifest: %w", err)
	}
	defer os.Remove(file.Name())
	_, err = file.Write(manifest)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("writing a manifest: %w", err)
	}
	_, err = n.Kubectl(ctx, "apply", "-f", file.Name())
	return err
}

// fatal is the value with which a failed kubectl command panics, instead of exiting the process.
type fatal struct {
	message string
	code    int
}

// configureKubectl sets what applies to all commands of kubectl in this process.
var configureKubectl = sync.OnceFunc(func() {
	rest.SetDefaultWarningHandler(rest.NoWarnings{}) // they would be written to the output of the tests
	cmdutil.BehaviorOnFatal(func(message string, code int) { panic(fatal{message, code}) })
})

// runKubectl runs kubectl in this process and returns its stdout. The error contains its stderr.
func runKubectl(ctx context.Context, shared cmdutil.Factory, args []string) (out []byte, err error) {
	configureKubectl()
	var stdout, stderr bytes.Buffer
	defer func() {
		out = stdout.Bytes()
		stdout = bytes.Buffer{} // the command is kept; see newKubectl
		switch failure := recover().(type) {
		case nil:
		case fatal:
			err = fmt.Errorf("exit status %d: %s", failure.code, failure.message)
		default:
			panic(failure)
		}
		if err != nil && stderr.Len() > 0 {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
		}
	}()
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &stdout, ErrOut: &stderr}
	kubectl, err := newKubectl(args[0], shared, streams)
	if err != nil {
		return nil, err
	}
	kubectl.SetArgs(args)
	kubectl.SetOut(&stdout)
	kubectl.SetErr(&stderr)
	return nil, kubectl.ExecuteContext(ctx)
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

// Kubeconfig returns the path of a kubeconfig of the cluster's admin that kubectl and Helm can use outside of the box.
func (n *Node) Kubeconfig() string { return filepath.Join(n.Box.Dir(), "kubeconfig") }

// expose forwards a port on the machine's loopback interface to the API server, until the box ends, and writes
// Kubeconfig.
func (n *Node) expose(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("exposing the API server: %w", err)
	}
	socket, err := listener.(*net.TCPListener).File()
	if err := errors.Join(err, listener.Close()); err != nil {
		return fmt.Errorf("exposing the API server: %w", err)
	}
	defer socket.Close()
	if err := n.startCommand("forward", n.Box.Forward(context.WithoutCancel(ctx), socket, apiServer)); err != nil {
		return err
	}
	inside, err := os.ReadFile(n.Box.Path(adminConfig))
	if err != nil {
		return fmt.Errorf("reading the kubeconfig of the admin: %w", err)
	}
	n.kubectl = newFactory(n.Kubeconfig(), filepath.Join(n.Box.Dir(), "kubectl-cache"))
	outside := bytes.ReplaceAll(inside, []byte(apiServer), []byte(listener.Addr().String()))
	if err := os.WriteFile(n.Kubeconfig(), outside, 0o600); err != nil {
		return fmt.Errorf("writing the kubeconfig of the admin: %w", err)
	}
	return nil
}
