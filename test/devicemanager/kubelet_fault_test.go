package devicemanager

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

// kubeletFault is a fault of the kubelet or of its device plugin directory.
type kubeletFault struct {
	name string
	// inject returns the running kubelet and the time from which the agent could register with it.
	inject func(t *testing.T, n *node, k *kubelet) (*kubelet, time.Time)
}

func kubeletFaults() []kubeletFault {
	// The kubelet creates its socket only when it starts.
	restartAfter := func(change func(dir string) error) func(*testing.T, *node, *kubelet) (*kubelet, time.Time) {
		return func(t *testing.T, n *node, k *kubelet) (*kubelet, time.Time) {
			k.stop()
			if err := change(filepath.Join(n.kubeletDir, "device-plugins")); err != nil {
				t.Fatal(err)
			}
			since := time.Now()
			return startKubelet(t, k.dir, 2, k.activePods()...), since
		}
	}
	// A fake registration server handles three registrations before the kubelet restarts.
	failRegistration := func(register func(plugin string) error) func(*testing.T, *node, *kubelet) (*kubelet, time.Time) {
		return func(t *testing.T, n *node, k *kubelet) (*kubelet, time.Time) {
			k.stop()
			serveRegistration(t, filepath.Join(n.kubeletDir, "device-plugins"), register)
			since := time.Now()
			return startKubelet(t, k.dir, 2, k.activePods()...), since
		}
	}
	return []kubeletFault{
		{
			name: "the agent's socket is deleted",
			inject: func(t *testing.T, n *node, k *kubelet) (*kubelet, time.Time) {
				before := n.sockets(t)
				if len(before) != 1 {
					t.Fatalf("got sockets %v, want one", before)
				}
				if err := os.Remove(before[0]); err != nil {
					t.Fatal(err)
				}
				since := time.Now()
				n.awaitNewSocket(t, before[0])
				// Until the agent registers again, the kubelet may have the counts of the first registration.
				n.awaitMetric(t, `gpucdi_registrations_total{resource="nvidia.com/gpu"} 2`)
				return k, since
			},
		},
		{
			name:   "the kubelet restarts and recreates its socket",
			inject: restartAfter(func(string) error { return nil }),
		},
		{
			name: "the directory is wiped, and the kubelet restarts",
			inject: restartAfter(func(dir string) error {
				sockets, err := filepath.Glob(filepath.Join(dir, "*.sock"))
				for _, name := range sockets {
					err = errors.Join(err, os.Remove(name))
				}
				return err
			}),
		},
		{
			name: "the directory is deleted, and the kubelet recreates it",
			inject: restartAfter(func(dir string) error {
				return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o755),
					os.Rename(dir+".old/kubelet_internal_checkpoint", dir+"/kubelet_internal_checkpoint"))
			}),
		},
		{
			name:   "the kubelet refuses the registration, and restarts",
			inject: failRegistration(func(string) error { return errors.New("not now") }),
		},
		{
			name:   "the kubelet disconnects after the first device list, and restarts",
			inject: failRegistration(disconnect),
		},
	}
}

// TestKubeletFaults logs the time until the kubelet has all GPUs again, as rows of docs/health.md.
func TestKubeletFaults(t *testing.T) {
	t.Parallel()
	document := readHealthDoc(t)
	for _, f := range kubeletFaults() {
		row := "| " + f.name + " |"
		document.requireRow(t, row)
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			n, k := startNode(t)
			pod, before := n.admitPod(t, k, "stays", 3)
			k, since := f.inject(t, n, k)
			k.awaitGPUs(t, 8, 8)
			t.Logf("%s %s |", row, time.Since(since).Round(time.Millisecond))
			if after := n.startPod(t, k, pod); !slices.Equal(before, after) {
				t.Errorf("the restarted container has %v, want %v", after, before)
			}
			// The kubelet may have the counts of the earlier registration until it has processed its end.
			other := newPod("new", 5)
			err := k.admit(other)
			for start := time.Now(); err != nil && time.Since(start) < timeout; err = k.admit(other) {
				time.Sleep(10 * time.Millisecond)
			}
			if err != nil {
				t.Fatalf("admitting %s: %v", other.Name, err)
			}
			others := n.startPod(t, k, other)
			if len(others) != 5 {
				t.Errorf("%s has %v, want 5 GPUs", other.Name, others)
			}
			disjoint(t, before, others)
		})
	}
}

// serveRegistration serves kubelet.sock in dir until the agent has registered three times.
func serveRegistration(t *testing.T, dir string, register func(plugin string) error) {
	t.Helper()
	socket := filepath.Join(dir, "kubelet.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	r := &registrationServer{dir: dir, register: register, registered: make(chan struct{})}
	server := grpc.NewServer()
	api.RegisterRegistrationServer(server, r)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	for range 3 {
		select {
		case <-r.registered:
		case <-time.After(timeout):
			t.Error("the agent did not register")
		}
	}
	server.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// registrationServer is the kubelet's registration service.
type registrationServer struct {
	api.UnimplementedRegistrationServer
	dir        string
	register   func(plugin string) error // called with the path of the plugin's socket
	registered chan struct{}
}

func (r *registrationServer) Register(ctx context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	select {
	case r.registered <- struct{}{}:
	case <-ctx.Done():
	}
	return &api.Empty{}, r.register(filepath.Join(r.dir, request.GetEndpoint()))
}

// disconnect receives one device list in the background, and then closes the connection.
func disconnect(plugin string) error {
	conn, err := grpc.NewClient("unix:"+plugin, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	go func() {
		defer conn.Close()
		stream, err := api.NewDevicePluginClient(conn).ListAndWatch(context.Background(), &api.Empty{})
		if err == nil {
			_, _ = stream.Recv()
		}
	}()
	return nil
}

// With an unreadable checkpoint the agent still advertises all GPUs: the kubelet rewrites the checkpoint when it
// receives the first device list.
func TestUnreadableCheckpoint(t *testing.T) {
	t.Parallel()
	n := newNode(t, simdriver.H100x8())
	k := startKubelet(t, n.kubeletDir, 2)
	if err := os.WriteFile(filepath.Join(n.kubeletDir, "device-plugins", "kubelet_internal_checkpoint"), []byte(`{"Data":`), 0o600); err != nil {
		t.Fatal(err)
	}
	n.startAgent(t)
	k.awaitGPUs(t, 8, 8)
	n.admitPod(t, k, "pod", 8)
}
