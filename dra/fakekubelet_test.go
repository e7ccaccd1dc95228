package dra

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// fakeKubelet behaves like the kubelet towards DRA drivers: it registers the sockets that it finds, and stays connected
// to the endpoint while the socket exists.
type fakeKubelet struct {
	t          *testing.T
	dir        string // the kubelet's root
	registered chan plugin
	refuse     string // the error of each registration; empty accepts it
	cancel     context.CancelFunc
	tasks      sync.WaitGroup
}

// plugin is a plugin that the fake kubelet registered.
type plugin struct {
	socket string
	info   *registerapi.PluginInfo
	conn   *grpc.ClientConn
}

// startKubelet starts a fake kubelet with the root dir.
func startKubelet(t *testing.T, dir string, refuse string) *fakeKubelet {
	t.Helper()
	k := &fakeKubelet{t: t, dir: dir, registered: make(chan plugin, 100), refuse: refuse}
	if err := os.MkdirAll(filepath.Join(dir, registryDir), 0o750); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	k.tasks.Go(func() { k.run(ctx) })
	t.Cleanup(k.stop)
	return k
}

// stop disconnects from all plugins.
func (k *fakeKubelet) stop() {
	k.cancel()
	k.tasks.Wait()
}

func (k *fakeKubelet) run(ctx context.Context) {
	known := map[string]plugin{}
	defer func() {
		for _, p := range known {
			p.conn.Close()
		}
	}()
	for ctx.Err() == nil {
		found := socketsIn(k.t, filepath.Join(k.dir, registryDir))
		for name, p := range known {
			if !slices.Contains(found, name) {
				p.conn.Close()
				delete(known, name)
			}
		}
		for _, name := range found {
			if _, registered := known[name]; !registered {
				if p, ok := k.register(ctx, name); ok {
					known[name] = p
					k.registered <- p
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (k *fakeKubelet) register(ctx context.Context, name string) (plugin, bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn := dial(k.t, filepath.Join(k.dir, registryDir, name))
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		return plugin{}, false
	}
	if k.refuse != "" {
		_, _ = client.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{Error: k.refuse})
		return plugin{}, false
	}
	p := plugin{socket: name, info: info, conn: dial(k.t, info.GetEndpoint())}
	p.conn.Connect()
	if _, err := client.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		p.conn.Close()
		return plugin{}, false
	}
	return p, true
}

// next waits for the next registration, and until the driver reports it.
func (k *fakeKubelet) next(d *Driver) plugin {
	k.t.Helper()
	p := receive(k.t, k.registered, "a registration")
	eventually(k.t, "the connection of the kubelet", func() bool { return p.conn.GetState() == connectivity.Ready && !d.Registration().Since.IsZero() })
	return p
}

func dial(t *testing.T, path string) *grpc.ClientConn {
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Error(err)
	}
	return conn
}

func socketsIn(t *testing.T, dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		t.Error(err)
	}
	for _, e := range entries {
		if e.Type() == os.ModeSocket {
			names = append(names, e.Name())
		}
	}
	return names
}

// sockets returns the driver's registration and service sockets.
func (n *node) sockets() (registration, service []string) {
	registration = slices.DeleteFunc(socketsIn(n.T, n.driver.registryDir()), func(name string) bool { return !strings.HasPrefix(name, n.driver.registrationPrefix()) })
	return registration, socketsIn(n.T, n.driver.pluginDir())
}

// run runs the driver until the test ends, or stop is called, and checks that it leaves no socket.
func (n *node) run() (stop func()) {
	n.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.driver.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := receive(n.T, ended, "the return of Run"); err != nil {
			n.Errorf("Run = %v, want nil", err)
		}
		if registration, service := n.sockets(); len(registration)+len(service) > 0 {
			n.Errorf("sockets left behind: %v, %v", registration, service)
		}
	})
	n.Cleanup(stop)
	return stop
}

// otherDriver serves the registration socket of a driver in another process.
type otherDriver struct {
	registerapi.UnimplementedRegistrationServer
	info *registerapi.PluginInfo
	hang chan struct{} // GetInfo waits until it is closed; nil: it does not wait
}

func (o *otherDriver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	if o.hang != nil {
		<-o.hang
	}
	return o.info, nil
}

func (o *otherDriver) NotifyRegistrationStatus(context.Context, *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

// serveOther starts another driver. stop removes its socket if unlink is set.
func serveOther(t *testing.T, path string, o *otherDriver) (stop func(unlink bool)) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, o)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	once := sync.Once{}
	stop = func(unlink bool) {
		once.Do(func() {
			listener.(*net.UnixListener).SetUnlinkOnClose(unlink)
			if o.hang != nil {
				close(o.hang)
			}
			server.Stop()
			<-served
		})
	}
	t.Cleanup(func() { stop(true) })
	return stop
}
