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
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// start runs a plugin with 8 GPUs in dir.
func start(t *testing.T, dir string, change ...func(*Plugin)) (p *Plugin, stop func()) {
	t.Helper()
	p = New(testConfig(dir), testLog(t))
	for _, c := range change {
		c(p)
	}
	p.Update(offer(bothWays))
	return p, runPlugin(t, p)
}

// checkRegistration checks that the kubelet receives the list of devices and can allocate one.
func checkRegistration(t *testing.T, r registration) {
	t.Helper()
	if list := receive(t, r.lists, "the devices"); len(list.Devices) != 8 {
		t.Fatalf("%d devices, want 8", len(list.Devices))
	}
	if _, err := r.client.Allocate(t.Context(), request(uuids(0))); err != nil {
		t.Fatal(err)
	}
}

// After an empty list, the kubelet would withdraw devices that pods are waiting for. Without a list, it keeps them.
func TestNoListBeforeFirstUpdate(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	p := New(testConfig(dir), testLog(t))
	runPlugin(t, p)
	r := kubelet.next()
	if _, err := r.client.Allocate(t.Context(), request(uuids(0))); status.Code(err) != codes.NotFound {
		t.Errorf("Allocate before the first Update: %v", err)
	}
	p.Update(offer(bothWays))
	checkRegistration(t, r)
}

// Long resource names result in socket paths that fit and differ.
func TestLongResourceNames(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("a", 240) + "/" + strings.Repeat("b", 62)
	named := func(resource string) func(*Plugin) { return func(p *Plugin) { p.cfg.Resource = resource } }
	kubelet := newFakeKubelet(t, dir).start()
	p, _ := start(t, dir, named(long+"1"))
	first := kubelet.next()
	checkRegistration(t, first)
	if other, _ := start(t, t.TempDir(), named(long+"2")); p.resourcePrefix() == other.resourcePrefix() {
		t.Errorf("two resources have sockets with the prefix %s", p.resourcePrefix())
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return p.isOwnSocketName(e.Name()) && isAgentSocket(e) }) {
		t.Errorf("the plugin does not recognize its socket in %v", entries)
	}
}

func TestStopBeforeFirstUpdate(t *testing.T) {
	runPlugin(t, New(testConfig(t.TempDir()), testLog(t)))()
}

func TestStop(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	p, stop := start(t, dir)
	r := kubelet.next()
	checkRegistration(t, r)
	stop()
	r.awaitEnd(t)
	if state := p.Registration(); state != (Registration{Error: "stopped"}) {
		t.Errorf("registration %+v after the end", state)
	}
	if sockets := socketsIn(t, dir); !slices.Equal(sockets, []string{r.request.Endpoint, "kubelet.sock"}) {
		t.Errorf("sockets %v, want those of the kubelet and of the last registration", sockets)
	}
}

// The socket of an agent remains until the kubelet or the next agent starts, even if the agent was not registered when
// it ended.
func TestSocketOutlivesAgent(t *testing.T) {
	for name, lost := range map[string]bool{"registered": false, "registration lost": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			check := func(want bool) {
				t.Helper()
				if got, err := HasAgentSocket(dir); err != nil || got != want {
					t.Errorf("HasAgentSocket = %t, %v; want %t; sockets are %v", got, err, want, socketsIn(t, dir))
				}
			}
			var refuse atomic.Bool
			kubelet := newFakeKubelet(t, dir)
			kubelet.refuse = func(int) error {
				if refuse.Load() {
					return errors.New("not now")
				}
				return nil
			}
			kubelet.start()
			check(false)
			p, stop := start(t, dir)
			r := kubelet.next()
			checkRegistration(t, r)
			if lost {
				refuse.Store(true) // otherwise the plugin soon registers again
				r.cancel()
				eventually(t, "loss of the registration", func() bool { return p.Registration().Since.IsZero() })
			}
			stop()
			check(true)
			refuse.Store(false)

			start(t, dir)
			next := kubelet.next()
			checkRegistration(t, next)
			if sockets, err := ownSockets(p); err != nil || !slices.Equal(sockets, []string{next.request.Endpoint}) {
				t.Errorf("sockets of the next agent: %v, %v; want only %s", sockets, err, next.request.Endpoint)
			}
		})
	}
}

func TestHasAgentSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	if got, err := HasAgentSocket(dir); err != nil || got {
		t.Errorf("missing directory: %t, %v", got, err)
	}
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"kubelet.sock", "nvidia-gpu.sock", "gpucdi-0123abcd.sock", "gpucdi-example.com_gpu-0123abcd.socket",
		"other-gpucdi-gpu-0123abcd.sock",
	} {
		makeStaleSocket(t, filepath.Join(dir, name))
	}
	if err := os.WriteFile(filepath.Join(dir, "gpucdi-nvidia.com_gpu-00000000.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := HasAgentSocket(dir); err != nil || got {
		t.Errorf("only other sockets: %t, %v", got, err)
	}
	makeStaleSocket(t, filepath.Join(dir, "gpucdi-example.com_gpu-shared-0123abcd.sock"))
	if got, err := HasAgentSocket(dir); err != nil || !got {
		t.Errorf("socket of another resource: %t, %v", got, err)
	}
	if got, err := HasAgentSocket(filepath.Join(dir, "kubelet.sock")); err == nil {
		t.Errorf("not a directory: %t, no error", got)
	}
}

func TestWaitForKubelet(t *testing.T) {
	dir := t.TempDir()
	_, stop := start(t, dir)
	checkRegistration(t, newFakeKubelet(t, dir).start().next())
	stop()

	t.Run("stop while waiting", func(t *testing.T) {
		_, stop := start(t, t.TempDir())
		stop()
	})
}

func TestKubeletRestart(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	start(t, dir)
	endpoints := map[string]bool{}
	for range 3 {
		r := kubelet.next()
		checkRegistration(t, r)
		if endpoints[r.request.Endpoint] {
			t.Errorf("%s registered twice", r.request.Endpoint)
		}
		endpoints[r.request.Endpoint] = true
		kubelet.stop()
		kubelet = newFakeKubelet(t, dir).start()
	}
	checkRegistration(t, kubelet.next())
}

// A killed kubelet leaves its socket behind, which refuses connections until the next kubelet replaces it.
func TestKubeletKilled(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	record := &logRecorder{}
	start(t, dir, func(p *Plugin) { p.log = slog.New(slog.NewTextHandler(record, nil)) })
	r := kubelet.next()
	checkRegistration(t, r)
	kubelet.listener.SetUnlinkOnClose(false)
	kubelet.stop()
	r.cancel()
	eventually(t, "refused connection in the log", func() bool { return record.count("connection refused") > 0 })
	checkRegistration(t, newFakeKubelet(t, dir).start().next())
}

// The kubelet's socket is replaced while the old stream is still open.
func TestKubeletSocketReplaced(t *testing.T) {
	dir := t.TempDir()
	old := newFakeKubelet(t, dir).start()
	start(t, dir)
	first := old.next()
	checkRegistration(t, first)
	if err := os.Rename(old.socket(), filepath.Join(dir, "old.sock")); err != nil {
		t.Fatal(err)
	}
	kubelet := newFakeKubelet(t, dir)
	kubelet.start()
	checkRegistration(t, kubelet.next())
	first.awaitEnd(t)
}

func TestOwnSocketDeleted(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	p, _ := start(t, dir)
	r := kubelet.next()
	for range 3 {
		checkRegistration(t, r)
		if err := os.Remove(filepath.Join(dir, r.request.Endpoint)); err != nil {
			t.Fatal(err)
		}
		before := r
		before.awaitEnd(t)
		r = kubelet.next()
		if r.request.Endpoint == before.request.Endpoint {
			t.Errorf("%s registered twice", r.request.Endpoint)
		}
	}
	checkRegistration(t, r)
	p.Update(offer(bothWays, fault(0, "ECC")))
	if list := receive(t, r.lists, "an update"); list.Devices[0].Health != "Unhealthy" {
		t.Errorf("update not received by the last registration: %v", list)
	}
}

func TestStreamClosedByKubelet(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	start(t, dir)
	for range 3 {
		r := kubelet.next()
		checkRegistration(t, r)
		r.cancel()
	}
	checkRegistration(t, kubelet.next())
}

// Kubelet 1.36 drops a registration that it accepted before it processed the end of an earlier stream, and then never
// opens a stream.
func TestNoStreamAfterRegistration(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir)
	kubelet.noStream = func(attempt int) bool { return attempt <= 2 }
	kubelet.start()
	start(t, dir, func(p *Plugin) { p.streamTimeout = 2 * time.Second })
	kubelet.next()
	kubelet.next()
	checkRegistration(t, kubelet.next())
}

// The end of another client's stream does not affect the registration.
func TestStreamOfAnotherClient(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir).start()
	p, _ := start(t, dir)
	r := kubelet.next()
	checkRegistration(t, r)
	opened := p.List().Stream
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := r.client.ListAndWatch(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	eventually(t, "end of the other stream", func() bool { return p.List().Stream.Equal(opened) })
	select {
	case again := <-kubelet.registered:
		t.Errorf("unexpected registration of %s", again.request.Endpoint)
	case <-time.After(200 * time.Millisecond): // longer than the first pause of a backoff
	}
	p.Update(offer(bothWays, fault(1, "ECC")))
	if list := receive(t, r.lists, "an update on the kubelet's stream"); list.Devices[1].Health != "Unhealthy" {
		t.Errorf("update not received: %v", list)
	}
}

func TestRegistrationRefused(t *testing.T) {
	dir := t.TempDir()
	kubelet := newFakeKubelet(t, dir)
	kubelet.refuse = func(attempt int) error {
		if attempt <= 3 {
			return status.Error(codes.Unknown, "invalid resource name")
		}
		return nil
	}
	kubelet.start()
	record := &logRecorder{}
	start(t, dir, func(p *Plugin) { p.log = slog.New(slog.NewTextHandler(record, nil)) })
	checkRegistration(t, kubelet.next())
	if n := record.count("invalid resource name"); n != 1 {
		t.Errorf("the same error is logged %d times, want once", n)
	}
	eventually(t, "registration in the log", func() bool { return record.count("registered with kubelet") == 1 })
}

func TestDirectoryCreatedLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	start(t, dir)
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	checkRegistration(t, newFakeKubelet(t, dir).start().next())
}

func TestDirectoryReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	kubelet := newFakeKubelet(t, dir).start()
	start(t, dir)
	for range 2 {
		r := kubelet.next()
		checkRegistration(t, r)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		r.awaitEnd(t)
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		kubelet = newFakeKubelet(t, dir).start()
	}
	checkRegistration(t, kubelet.next())
}

func TestStaleSocketsRemoved(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "gpucdi-nvidia.com_gpu-0123abcd.sock")
	makeStaleSocket(t, stale)
	sockets := []string{
		"gpucdi-nvidia.com_gpu-0123abcd.socket", "gpucdi-nvidia.com_gpu-shared-0123abcd.sock", "nvidia-gpu.sock",
	}
	for _, name := range sockets {
		makeStaleSocket(t, filepath.Join(dir, name))
	}
	files := []string{"gpucdi-nvidia.com_gpu-00000000.sock", "kubelet_internal_checkpoint"}
	for _, name := range files {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start(t, dir)
	// No fake kubelet runs here, since it would remove the sockets itself.
	eventually(t, "removal of the stale socket", func() bool {
		_, err := os.Lstat(stale)
		return errors.Is(err, os.ErrNotExist)
	})
	for _, name := range slices.Concat(sockets, files) {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Errorf("removed a file of another owner: %v", err)
		}
	}
}

// makeStaleSocket creates a socket without a listener.
func makeStaleSocket(t *testing.T, path string) {
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

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for start := time.Now(); !condition(); time.Sleep(time.Millisecond) {
		if time.Since(start) > testTimeout {
			t.Fatalf("no %s within %s", what, testTimeout)
		}
	}
}

func TestDirectoryPathTooLong(t *testing.T) {
	p := New(testConfig("/"+strings.Repeat("d", 80)), testLog(t))
	if err := p.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "107") {
		t.Errorf("Run = %v, want an error with the limit", err)
	}
}
