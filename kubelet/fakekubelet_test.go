package kubelet

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/internal/sockets"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout bounds each wait of a test.
const testTimeout = 30 * time.Second

// fakeKubelet behaves like the kubelet towards plugins: it serves Registration, dials back and calls
// GetDevicePluginOptions within Register, and then opens a ListAndWatch stream.
type fakeKubelet struct {
	api.UnimplementedRegistrationServer
	t        *testing.T
	dir      string
	grpc     *grpc.Server
	listener *net.UnixListener
	tasks    sync.WaitGroup

	registered chan registration
	refuse     func(attempt int) error // nil accepts all registrations
	noStream   func(attempt int) bool  // whether to open no ListAndWatch stream; nil: always open one
	attempts   int                     // calls of Register, which are sequential
}

// registration is a registration that the fake kubelet accepted.
type registration struct {
	request *api.RegisterRequest
	options *api.DevicePluginOptions
	client  api.DevicePluginClient
	lists   <-chan *api.ListAndWatchResponse // closed when the stream ends
	cancel  context.CancelFunc               // ends the stream from the kubelet's side
}

func newFakeKubelet(t *testing.T, dir string) *fakeKubelet {
	return &fakeKubelet{t: t, dir: dir, registered: make(chan registration, 100)}
}

func (k *fakeKubelet) socket() string { return filepath.Join(k.dir, "kubelet.sock") }

// start removes all sockets, as the kubelet does, and starts to serve.
func (k *fakeKubelet) start() *fakeKubelet {
	k.t.Helper()
	for _, name := range socketsIn(k.t, k.dir) {
		if err := os.Remove(filepath.Join(k.dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			k.t.Fatal(err)
		}
	}
	var err error
	if k.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: k.socket()}); err != nil {
		k.t.Fatal(err)
	}
	k.grpc = grpc.NewServer(grpc.WaitForHandlers(true))
	api.RegisterRegistrationServer(k.grpc, k)
	k.tasks.Go(func() { _ = k.grpc.Serve(k.listener) })
	k.t.Cleanup(k.stop)
	return k
}

// stop stops the kubelet and removes its socket. It ends the streams of registrations that the test has not received.
func (k *fakeKubelet) stop() {
	k.grpc.Stop()
	for {
		select {
		case r := <-k.registered:
			defer r.cancel()
			continue
		default:
		}
		break
	}
}

func (k *fakeKubelet) Register(ctx context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	k.attempts++
	if k.refuse != nil {
		if err := k.refuse(k.attempts); err != nil {
			return nil, err
		}
	}
	conn, err := grpc.NewClient("unix:"+filepath.Join(k.dir, request.Endpoint),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	client := api.NewDevicePluginClient(conn)
	options, err := client.GetDevicePluginOptions(ctx, &api.Empty{})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	streaming, cancel := context.WithCancel(context.Background())
	k.t.Cleanup(cancel)
	lists := make(chan *api.ListAndWatchResponse, 1000)
	noStream := k.noStream != nil && k.noStream(k.attempts)
	k.tasks.Go(func() {
		defer conn.Close()
		defer close(lists)
		if noStream {
			<-streaming.Done()
			return
		}
		stream, err := client.ListAndWatch(streaming, &api.Empty{})
		for err == nil {
			var list *api.ListAndWatchResponse
			if list, err = stream.Recv(); err == nil {
				lists <- list
			}
		}
	})
	k.registered <- registration{request, options, client, lists, cancel}
	return &api.Empty{}, nil
}

// next waits for the next registration.
func (k *fakeKubelet) next() registration {
	k.t.Helper()
	return receive(k.t, k.registered, "a registration")
}

// receive waits for a value and fails the test if none arrives.
func receive[T any](t *testing.T, from <-chan T, what string) T {
	t.Helper()
	select {
	case v, open := <-from:
		if !open {
			t.Fatalf("waiting for %s: channel closed", what)
		}
		return v
	case <-time.After(testTimeout):
		t.Fatalf("waiting for %s: timed out after %s", what, testTimeout)
	}
	panic("unreachable")
}

// awaitEnd waits until the plugin has ended the stream. It returns the lists that the test has not received.
func (r registration) awaitEnd(t *testing.T) (lists []*api.ListAndWatchResponse) {
	t.Helper()
	timeout := time.After(testTimeout)
	for {
		select {
		case list, open := <-r.lists:
			if !open {
				return lists
			}
			lists = append(lists, list)
		case <-timeout:
			t.Fatalf("the stream of %s did not end", r.request.Endpoint)
		}
	}
}

func socketsIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Type() == os.ModeSocket {
			names = append(names, e.Name())
		}
	}
	return names
}

// ownSockets returns the sockets of the plugin's resource.
func ownSockets(p *Plugin) (names []string, err error) {
	entries, err := os.ReadDir(p.cfg.Dir)
	for _, e := range entries {
		if p.isOwnSocketName(e.Name()) && e.Type() == os.ModeSocket {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// runPlugin runs a plugin until the test ends, or stop is called, and checks that it ends cleanly.
func runPlugin(t *testing.T, p *Plugin) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := receive(t, ended, "the return of Run"); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		left, err := ownSockets(p)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Error(err)
		}
		if len(left) > 1 {
			t.Errorf("sockets left behind: %v, want at most one", left)
		}
		for _, name := range left {
			if sockets.HasListener(context.Background(), filepath.Join(p.cfg.Dir, name)) {
				t.Errorf("%s still has a listener", name)
			}
		}
	})
	t.Cleanup(stop)
	return stop
}

// testLog returns a logger that writes to the test's output.
func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// logRecorder records the log.
type logRecorder struct {
	mutex sync.Mutex
	text  strings.Builder
}

func (r *logRecorder) Write(p []byte) (int, error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.text.Write(p)
}

func (r *logRecorder) count(part string) int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return strings.Count(r.text.String(), part)
}
