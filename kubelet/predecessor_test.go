package kubelet

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
)

// AwaitPredecessor waits for an agent that serves any resource, but not for other device plugins.
func TestAwaitPredecessor(t *testing.T) {
	dir := t.TempDir()
	makeStaleSocket(t, filepath.Join(dir, "gpucdi-nvidia.com_gpu-0123abcd.sock"))
	other, err := net.Listen("unix", filepath.Join(dir, "nvidia-gpu.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	reported := make(chan string, 8)
	waiting := func(socket string) { reported <- socket }
	if err := AwaitPredecessor(t.Context(), dir, waiting); err != nil || len(reported) > 0 {
		t.Fatalf("with another plugin: %v, %d waits", err, len(reported))
	}
	if err := AwaitPredecessor(t.Context(), filepath.Join(dir, "missing"), waiting); err != nil {
		t.Errorf("missing directory: %v", err)
	}

	path := filepath.Join(dir, "gpucdi-nvidia.com_mig-1g.5gb-89abcdef.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	serving := make(chan error, 1)
	go func() { serving <- server.Serve(listener) }()
	ended := make(chan error, 1)
	go func() { ended <- AwaitPredecessor(t.Context(), dir, waiting) }()
	if socket := receive(t, reported, "the other agent's socket"); socket != path {
		t.Errorf("waiting for %s, want %s", socket, path)
	}
	select {
	case err := <-ended:
		t.Fatalf("returned before the other agent ended: %v", err)
	default:
	}
	server.GracefulStop()
	if err := receive(t, ended, "the return of AwaitPredecessor"); err != nil {
		t.Error(err)
	}
	if err := receive(t, serving, "the end of the other agent"); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		t.Error(err)
	}
	if len(reported) > 0 {
		t.Errorf("the socket was reported %d more times", len(reported))
	}
}

// AwaitPredecessor also waits for a listener that does not serve gRPC, until it closes.
func TestAwaitPredecessorWithoutGRPC(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, "gpucdi-nvidia.com_gpu-89abcdef.sock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	reported, ended := make(chan string, 8), make(chan error, 2)
	wait := func(ctx context.Context) {
		ended <- AwaitPredecessor(ctx, dir, func(socket string) { reported <- socket })
	}
	go wait(ctx)
	receive(t, reported, "the socket")
	cancel()
	if err := receive(t, ended, "the return of AwaitPredecessor after the cancellation"); err == nil {
		t.Error("no error")
	}
	go wait(t.Context())
	receive(t, reported, "the socket again")
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, ended, "the return of AwaitPredecessor"); err != nil {
		t.Error(err)
	}
	if socket, err := activeAgentSocket(t.Context(), dir); socket != "" || err != nil {
		t.Errorf("active socket %q, %v; want none", socket, err)
	}
}

// A listener that closes each connection is checked repeatedly, but reported once.
func TestAwaitPredecessorThatClosesConnections(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, "gpucdi-nvidia.com_gpu-89abcdef.sock"))
	if err != nil {
		t.Fatal(err)
	}
	reported, ended := make(chan string, 8), make(chan error, 1)
	go func() { ended <- AwaitPredecessor(t.Context(), dir, func(socket string) { reported <- socket }) }()
	for range 6 { // three checks, each of which connects twice
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, ended, "the return of AwaitPredecessor"); err != nil {
		t.Error(err)
	}
	if len(reported) != 1 {
		t.Errorf("the socket was reported %d times, want once", len(reported))
	}
}
