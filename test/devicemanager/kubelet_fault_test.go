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

// A kubeletFault is something that happens to the directory in which kubelet
// and agent meet.
type kubeletFault struct {
	name string
	// happen returns the kubelet that goes on, and since when it could.
	happen func(t *testing.T, n *node, k *kubelet) (*kubelet, time.Time)
}

func kubeletFaults() []kubeletFault {
	// A kubelet makes its socket when it starts, and at no other time.
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
	// Until the agent has come back three times, one stands in for the kubelet that
	// does not want it.
	unwilling := func(answer func(plugin string) error) func(*testing.T, *node, *kubelet) (*kubelet, time.Time) {
		return func(t *testing.T, n *node, k *kubelet) (*kubelet, time.Time) {
			k.stop()
			standIn(t, filepath.Join(n.kubeletDir, "device-plugins"), answer)
			since := time.Now()
			return startKubelet(t, k.dir, 2, k.activePods()...), since
		}
	}
	return []kubeletFault{
		{
			name: "the agent's socket is deleted",
			happen: func(t *testing.T, n *node, k *kubelet) (*kubelet, time.Time) {
				before := n.sockets(t)
				if len(before) != 1 {
					t.Fatalf("the agent's sockets are %v, want one", before)
				}
				if err := os.Remove(before[0]); err != nil {
					t.Fatal(err)
				}
				since := time.Now()
				n.newSocket(t, before[0])
				return k, since
			},
		},
		{
			name:   "the kubelet restarts, and makes its socket anew",
			happen: restartAfter(func(string) error { return nil }),
		},
		{
			name: "the directory is wiped, and the kubelet restarts",
			happen: restartAfter(func(dir string) error {
				sockets, err := filepath.Glob(filepath.Join(dir, "*.sock"))
				for _, name := range sockets {
					err = errors.Join(err, os.Remove(name))
				}
				return err
			}),
		},
		{
			name: "the directory is deleted, and the kubelet makes it anew",
			happen: restartAfter(func(dir string) error {
				return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o755),
					os.Rename(dir+".old/kubelet_internal_checkpoint", dir+"/kubelet_internal_checkpoint"))
			}),
		},
		{
			name:   "a kubelet refuses the registration, and restarts",
			happen: unwilling(func(string) error { return errors.New("not now") }),
		},
		{
			name:   "a kubelet takes the list of devices and hangs up, and restarts",
			happen: unwilling(hangUp),
		},
	}
}

// TestKubeletFaults logs how long it is until the kubelet has the GPUs again.
func TestKubeletFaults(t *testing.T) {
	document := readHealth(t)
	for _, f := range kubeletFaults() {
		row := "| " + f.name + " |"
		document.must(t, row)
		t.Run(f.name, func(t *testing.T) {
			n, k := both(t)
			pod, before := n.admitted(t, k, "stays", 3)
			k, since := f.happen(t, n, k)
			k.counts(t, 8, 8)
			t.Logf("%s %s |", row, time.Since(since).Round(time.Millisecond))
			if after := n.started(t, k, pod); !slices.Equal(before, after) {
				t.Errorf("the restarted container has %v, before %v", after, before)
			}
			_, others := n.admitted(t, k, "new", 5)
			disjoint(t, before, others)
		})
	}
}

// standIn takes the kubelet's place until the agent has registered three times.
func standIn(t *testing.T, dir string, answer func(plugin string) error) {
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
	r := &registry{dir: dir, answer: answer, registered: make(chan struct{})}
	server := grpc.NewServer()
	api.RegisterRegistrationServer(server, r)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	for range 3 {
		select {
		case <-r.registered:
		case <-time.After(patience):
			t.Error("the agent does not come back")
		}
	}
	server.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// registry is as much of a kubelet as the agent registers with.
type registry struct {
	api.UnimplementedRegistrationServer
	dir        string
	answer     func(plugin string) error // given the plugin's socket
	registered chan struct{}
}

func (r *registry) Register(ctx context.Context, request *api.RegisterRequest) (*api.Empty, error) {
	select {
	case r.registered <- struct{}{}:
	case <-ctx.Done():
	}
	return &api.Empty{}, r.answer(filepath.Join(r.dir, request.GetEndpoint()))
}

// hangUp takes one list of devices and ends the stream.
func hangUp(plugin string) error {
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

// A checkpoint that cannot be read costs caution, never availability: the kubelet writes it again for the
// first list that it gets.
func TestACheckpointThatCannotBeRead(t *testing.T) {
	t.Parallel() // it mostly waits
	n := newNode(t, simdriver.H100x8())
	k := startKubelet(t, n.kubeletDir, 2)
	if err := os.WriteFile(filepath.Join(n.kubeletDir, "device-plugins", "kubelet_internal_checkpoint"), []byte(`{"Data":`), 0o600); err != nil {
		t.Fatal(err)
	}
	n.startAgent(t)
	k.counts(t, 8, 8)
	n.admitted(t, k, "pod", 8)
}
