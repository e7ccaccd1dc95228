package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// start runs a plugin with 8 GPUs on this directory.
func start(t *testing.T, dir string, change ...func(*Plugin)) (p *Plugin, stop func()) {
	t.Helper()
	p = New(testConfig(dir), testLog(t))
	for _, c := range change {
		c(p)
	}
	p.Update(offer(bothWays))
	return p, runPlugin(t, p)
}

// works checks that the registration's kubelet sees the devices.
func works(t *testing.T, r registration) {
	t.Helper()
	if list := receive(t, r.lists, "the devices"); len(list.Devices) != 8 {
		t.Fatalf("%d devices, want 8", len(list.Devices))
	}
	if _, err := r.client.Allocate(t.Context(), request(uuids(0))); err != nil {
		t.Fatal(err)
	}
}

// A kubelet that is told of no devices withdraws those that pods wait for, and
// one that hears nothing keeps what it knows.
func TestListsNothingBeforeTheFirstUpdate(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	p := New(testConfig(dir), testLog(t))
	runPlugin(t, p)
	r := kubelet.next()
	if _, err := r.client.Allocate(t.Context(), request(uuids(0))); status.Code(err) != codes.NotFound {
		t.Errorf("Allocate before the first Update: %v", err)
	}
	p.Update(offer(bothWays))
	works(t, r)
}

func TestEndBeforeTheFirstUpdate(t *testing.T) {
	runPlugin(t, New(testConfig(t.TempDir()), testLog(t)))()
}

func TestEnds(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	_, stop := start(t, dir)
	r := kubelet.next()
	works(t, r)
	stop()
	r.ended(t)
	if sockets := socketsIn(t, dir); !slices.Equal(sockets, []string{r.request.Endpoint, "kubelet.sock"}) {
		t.Errorf("there are the sockets %v, want the kubelet's and the last of the plugin", sockets)
	}
}

// The socket of an agent that ends is there until the kubelet or the next agent starts, also if
// no registration held at that moment.
func TestLeavesItsSocket(t *testing.T) {
	for name, hangUp := range map[string]bool{"registered": false, "the registration lost": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			left := func(want bool) {
				t.Helper()
				if got, err := Leftover(dir); err != nil || got != want {
					t.Errorf("Leftover = %t, %v; want %t; sockets are %v", got, err, want, socketsIn(t, dir))
				}
			}
			kubelet := newFakeKubelet(t, dir).start()
			left(false)
			p, stop := start(t, dir)
			r := kubelet.next()
			works(t, r)
			if hangUp {
				r.hangUp()
				eventually(t, "loss of the registration", func() bool { return p.Registration().Since.IsZero() })
			}
			stop()
			left(true)

			start(t, dir)
			next := kubelet.next()
			works(t, next)
			if sockets, err := ownSockets(p); err != nil || !slices.Equal(sockets, []string{next.request.Endpoint}) {
				t.Errorf("the next agent's sockets are %v, %v; want %s alone", sockets, err, next.request.Endpoint)
			}

		})
	}
}

func TestLeftover(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	if got, err := Leftover(dir); err != nil || got {
		t.Errorf("without a directory: %t, %v", got, err)
	}
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubelet.sock", "nvidia-gpu.sock", "gpucdi-0123abcd.sock", "gpucdi-example.com_gpu-0123abcd.socket", "other-gpucdi-gpu-0123abcd.sock"} {
		leaveSocket(t, filepath.Join(dir, name))
	}
	if err := os.WriteFile(filepath.Join(dir, "gpucdi-nvidia.com_gpu-00000000.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Leftover(dir); err != nil || got {
		t.Errorf("without a socket of ours: %t, %v", got, err)
	}
	leaveSocket(t, filepath.Join(dir, "gpucdi-example.com_gpu-shared-0123abcd.sock"))
	if got, err := Leftover(dir); err != nil || !got {
		t.Errorf("with a socket of another resource: %t, %v", got, err)
	}
	if got, err := Leftover(filepath.Join(dir, "kubelet.sock")); err == nil {
		t.Errorf("of what is no directory: %t, no error", got)
	}
}

func TestWaitsForTheKubelet(t *testing.T) {
	dir := t.TempDir()
	_, stop := start(t, dir)
	works(t, newFakeKubelet(t, dir).start().next())
	stop()

	t.Run("and ends while waiting", func(t *testing.T) {
		_, stop := start(t, t.TempDir())
		stop()
	})
}

func TestKubeletRestarts(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	start(t, dir)
	seen := map[string]bool{}
	for range 3 {
		r := kubelet.next()
		works(t, r)
		if seen[r.request.Endpoint] {
			t.Errorf("%s was registered twice", r.request.Endpoint)
		}
		seen[r.request.Endpoint] = true
		kubelet.stop()
		kubelet = newFakeKubelet(t, dir).start()
	}
	works(t, kubelet.next())
}

// A kubelet that is killed leaves its socket behind; connecting to it is
// refused until the next one replaces it.
func TestKubeletIsKilled(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	record := &logRecorder{}
	start(t, dir, func(p *Plugin) { p.log = slog.New(slog.NewTextHandler(record, nil)) })
	r := kubelet.next()
	works(t, r)
	kubelet.listener.SetUnlinkOnClose(false)
	kubelet.stop()
	r.hangUp()
	eventually(t, "refused registration in the log", func() bool { return record.count("connection refused") > 0 })
	works(t, newFakeKubelet(t, dir).start().next())
}

// The kubelet's socket is replaced while the old stream goes on.
func TestKubeletSocketIsReplaced(t *testing.T) {
	dir := t.TempDir()
	old := newFakeKubelet(t, dir).start()
	start(t, dir)
	first := old.next()
	works(t, first)
	if err := os.Rename(old.socket(), filepath.Join(dir, "old.sock")); err != nil {
		t.Fatal(err)
	}
	kubelet := newFakeKubelet(t, dir)
	kubelet.start()
	works(t, kubelet.next())
	first.ended(t)
}

func TestOwnSocketIsDeleted(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	p, _ := start(t, dir)
	r := kubelet.next()
	for range 3 {
		works(t, r)
		if err := os.Remove(filepath.Join(dir, r.request.Endpoint)); err != nil {
			t.Fatal(err)
		}
		before := r
		before.ended(t)
		r = kubelet.next()
		if r.request.Endpoint == before.request.Endpoint {
			t.Errorf("%s was registered twice", r.request.Endpoint)
		}
	}
	works(t, r)
	p.Update(offer(bothWays, fault(0, "ECC")))
	if list := receive(t, r.lists, "an update"); list.Devices[0].Health != "Unhealthy" {
		t.Errorf("the update did not reach the last registration: %v", list)
	}
}

func TestStreamIsEnded(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	start(t, dir)
	for range 3 {
		r := kubelet.next()
		works(t, r)
		r.hangUp()
	}
	works(t, kubelet.next())
}

// A kubelet that accepts a registration and then forgets it, as 1.36 does
// when the end of an earlier stream overtakes it, never asks for the devices.
func TestStreamNeverComes(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir)
	kubelet.mute = func(attempt int) bool { return attempt <= 2 }
	kubelet.start()
	start(t, dir, func(p *Plugin) { p.streamWithin = 200 * time.Millisecond })
	kubelet.next()
	kubelet.next()
	works(t, kubelet.next())
}

// Someone else's stream that ends is not the kubelet's.
func TestStreamOfAnotherClient(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	p, _ := start(t, dir)
	r := kubelet.next()
	works(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := r.client.ListAndWatch(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	p.Update(offer(bothWays, fault(1, "ECC")))
	if list := receive(t, r.lists, "an update on the kubelet's stream"); list.Devices[1].Health != "Unhealthy" {
		t.Errorf("the update did not come: %v", list)
	}
	select {
	case again := <-kubelet.registered:
		t.Errorf("registered again as %s", again.request.Endpoint)
	default:
	}
}

func TestRegistrationIsRefused(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir)
	kubelet.refuse = func(attempt int) error {
		if attempt <= 3 {
			return status.Error(codes.Unknown, "the resource name is not to my taste")
		}
		return nil
	}
	kubelet.start()
	record := &logRecorder{}
	start(t, dir, func(p *Plugin) { p.log = slog.New(slog.NewTextHandler(record, nil)) })
	works(t, kubelet.next())
	if n := record.count("not to my taste"); n != 1 {
		t.Errorf("the log gives the reason of three refusals %d times, want once", n)
	}
	eventually(t, "registration in the log", func() bool { return record.count("registered with the kubelet") == 1 })
}

func TestDirectoryComesLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	start(t, dir)
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	works(t, newFakeKubelet(t, dir).start().next())
}

func TestDirectoryIsReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	kubelet := newFakeKubelet(t, dir).start()
	start(t, dir)
	for range 2 {
		r := kubelet.next()
		works(t, r)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		r.ended(t)
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		kubelet = newFakeKubelet(t, dir).start()
	}
	works(t, kubelet.next())
}

func TestStaleSocketsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "gpucdi-nvidia.com_gpu-0123abcd.sock")
	leaveSocket(t, stale)
	sockets := []string{"gpucdi-nvidia.com_gpu-0123abcd.socket", "gpucdi-nvidia.com_gpu-shared-0123abcd.sock", "nvidia-gpu.sock"}
	for _, name := range sockets {
		leaveSocket(t, filepath.Join(dir, name))
	}
	files := []string{"gpucdi-nvidia.com_gpu-00000000.sock", "kubelet_internal_checkpoint"}
	for _, name := range files {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start(t, dir)
	// No fake kubelet may start before: it would remove the sockets itself.
	eventually(t, "removal of the stale socket", func() bool {
		_, err := os.Lstat(stale)
		return errors.Is(err, os.ErrNotExist)
	})
	for _, name := range slices.Concat(sockets, files) {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Errorf("removed what is not ours: %v", err)
		}
	}
}

// leaveSocket makes a socket that nobody listens on.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for start := time.Now(); !holds(); time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("no %s within %s", what, patience)
		}
	}
}

func TestDirectoryPathTooLong(t *testing.T) {
	p := New(testConfig("/"+strings.Repeat("d", 80)), testLog(t))
	if err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "107") {
		t.Errorf("Run = %v, want an error that tells the limit", err)
	}
}
