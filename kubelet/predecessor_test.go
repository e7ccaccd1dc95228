package kubelet

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
)

// An agent waits for the end of the one before it, whichever resource that serves, and for nobody else.
func TestAwaitPredecessor(t *testing.T) {
	dir := t.TempDir()
	leaveSocket(t, filepath.Join(dir, "gpucdi-nvidia.com_gpu-0123abcd.sock"))
	other, err := net.Listen("unix", filepath.Join(dir, "nvidia-gpu.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	told := make(chan string, 8)
	waiting := func(socket string) { told <- socket }
	if err := AwaitPredecessor(t.Context(), dir, waiting); err != nil || len(told) > 0 {
		t.Fatalf("beside another plugin: %v, waited for %d", err, len(told))
	}
	if err := AwaitPredecessor(t.Context(), filepath.Join(dir, "missing"), waiting); err != nil {
		t.Errorf("without a directory: %v", err)
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
	if socket := receive(t, told, "word of the other agent"); socket != path {
		t.Errorf("waits for %s, want %s", socket, path)
	}
	select {
	case err := <-ended:
		t.Fatalf("it does not wait: %v", err)
	default:
	}
	server.GracefulStop()
	if err := receive(t, ended, "the end of the wait"); err != nil {
		t.Error(err)
	}
	if err := receive(t, serving, "the end of the other agent"); err != nil {
		t.Error(err)
	}
	if len(told) > 0 {
		t.Errorf("it was told of it %d times more", len(told))
	}
}

// What only looks like an agent, since it does not answer, is waited for as long as it is there.
func TestAwaitPredecessorThatIsMute(t *testing.T) {
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, "gpucdi-nvidia.com_gpu-89abcdef.sock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan string, 8), make(chan error, 2)
	wait := func(ctx context.Context) {
		ended <- AwaitPredecessor(ctx, dir, func(socket string) { told <- socket })
	}
	go wait(ctx)
	receive(t, told, "word of it")
	cancel()
	if err := receive(t, ended, "the end of the wait by its context"); err == nil {
		t.Error("no error")
	}
	go wait(t.Context())
	receive(t, told, "word of it again")
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, ended, "the end of the wait"); err != nil {
		t.Error(err)
	}
	if served, err := served(t.Context(), dir); served != "" || err != nil {
		t.Errorf("%q is served, %v", served, err)
	}
}
