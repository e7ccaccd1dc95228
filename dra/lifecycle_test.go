package dra

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthalpha "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpucdi/gpucdi/gpu"
)

// serves checks that a registered plugin prepares and unprepares a claim.
func (n *node) serves(p plugin) {
	n.Helper()
	n.add("a", "0")
	ctx, cancel := context.WithTimeout(n.Context(), testTimeout)
	defer cancel()
	client := drapb.NewDRAPluginClient(p.conn)
	prepared, err := client.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{ref("a")}})
	if err != nil {
		n.Fatal(err)
	}
	if got := prepared.GetClaims()["uid-a"]; len(got.GetDevices()) != 1 || got.GetError() != "" {
		n.Errorf("Prepare: %v", prepared)
	}
	unprepared, err := client.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{ref("a")}})
	if err != nil {
		n.Fatal(err)
	}
	if got, found := unprepared.GetClaims()["uid-a"]; !found || got.GetError() != "" {
		n.Errorf("Unprepare: %v", unprepared)
	}
}

func TestRegistration(t *testing.T) {
	n := newNode(t)
	kubelet := startKubelet(t, n.cfg.KubeletDir, "")
	if r := n.driver.Registration(); !r.Since.IsZero() || r.Error == "" {
		t.Errorf("before the start: %+v", r)
	}
	stop := n.run()
	p := kubelet.next(n.driver)
	if p.info.GetType() != "DRAPlugin" || p.info.GetName() != testDriver || !slices.Equal(p.info.GetSupportedVersions(),
		[]string{"v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"}) {
		t.Errorf("registered %v", p.info)
	}
	if r := n.driver.Registration(); r.Error != "" {
		t.Errorf("registered with error %s", r.Error)
	}
	if n.observer.registered != 1 {
		t.Errorf("%d registrations observed", n.observer.registered)
	}
	n.serves(p)
	stop()
	if r := n.driver.Registration(); !r.Since.IsZero() || r.Error == "" {
		t.Errorf("after the end: %+v", r)
	}
}

// The endpoint is the path as seen by the kubelet, which differs from the path as seen by the agent.
func TestKubeletPath(t *testing.T) {
	n := newNode(t)
	n.cfg.KubeletPath = filepath.Join(t.TempDir(), "kubelet")
	n.restart()
	if err := os.Symlink(n.cfg.KubeletDir, n.cfg.KubeletPath); err != nil {
		t.Fatal(err)
	}
	kubelet := startKubelet(t, n.cfg.KubeletDir, "")
	n.run()
	p := kubelet.next(n.driver)
	if dir := filepath.Dir(p.info.GetEndpoint()); dir != filepath.Join(n.cfg.KubeletPath, "plugins", testDriver) {
		t.Errorf("endpoint in %s", dir)
	}
	n.serves(p)
}

// A restarted kubelet registers the same sockets.
func TestKubeletRestart(t *testing.T) {
	n := newNode(t)
	n.run() // before the kubelet has created its directories
	socket := ""
	for range 3 {
		kubelet := startKubelet(t, n.cfg.KubeletDir, "")
		p := kubelet.next(n.driver)
		n.serves(p)
		if socket != "" && p.socket != socket {
			t.Errorf("registered %s, and then %s", socket, p.socket)
		}
		socket = p.socket
		kubelet.stop()
		eventually(t, "the end of the registration", func() bool { return n.driver.Registration().Since.IsZero() })
		if r := n.driver.Registration(); r.Error != disconnected {
			t.Errorf("registration %+v", r)
		}
	}
}

func TestSocketsRemoved(t *testing.T) {
	n := newNode(t)
	kubelet := startKubelet(t, n.cfg.KubeletDir, "")
	n.run()
	p := kubelet.next(n.driver)
	for name, remove := range map[string]func() error{
		"registration socket": func() error { return os.Remove(filepath.Join(n.driver.registryDir(), p.socket)) },
		"service socket":      func() error { return os.Remove(p.info.GetEndpoint()) },
		"driver directory":    func() error { return os.RemoveAll(n.driver.pluginDir()) },
		"registry": func() error {
			if err := os.RemoveAll(n.driver.registryDir()); err != nil {
				return err
			}
			return os.Mkdir(n.driver.registryDir(), 0o750)
		},
		"everything": func() error {
			for _, dir := range []string{registryDir, pluginsDir} {
				if err := os.RemoveAll(filepath.Join(n.cfg.KubeletDir, dir)); err != nil {
					return err
				}
			}
			return os.Mkdir(n.driver.registryDir(), 0o750)
		},
		"socket replaced": func() error {
			path := filepath.Join(n.driver.registryDir(), p.socket)
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.WriteFile(path, nil, 0o600)
		},
	} {
		before := p
		if err := remove(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		p = kubelet.next(n.driver)
		if p.socket == before.socket || p.info.GetEndpoint() == before.info.GetEndpoint() {
			t.Errorf("%s removed: %s registered twice", name, p.socket)
		}
		n.serves(p)
	}
}

func TestRegistrationRefused(t *testing.T) {
	n := newNode(t)
	kubelet := startKubelet(t, n.cfg.KubeletDir, "no such version\n"+strings.Repeat("x", 5000))
	n.run()
	eventually(t, "the reason", func() bool { return strings.Contains(n.driver.Registration().Error, "no such version; xxx") })
	if r := n.driver.Registration(); len(r.Error) > 1000 {
		t.Errorf("an error of %d bytes", len(r.Error))
	}
	kubelet.stop()
	n.serves(startKubelet(t, n.cfg.KubeletDir, "").next(n.driver))
}

// A socket that the kubelet does not register in time is replaced.
func TestSocketMissed(t *testing.T) {
	n := newNode(t)
	n.driver.registerTimeout = 50 * time.Millisecond
	if err := os.Mkdir(n.driver.registryDir(), 0o750); err != nil {
		t.Fatal(err)
	}
	n.run()
	seen := map[string]bool{}
	eventually(t, "a second socket", func() bool {
		registration, _ := n.sockets()
		for _, name := range registration {
			seen[name] = true
		}
		return len(seen) == 2
	})
	if r := n.driver.Registration(); !strings.Contains(r.Error, "register") {
		t.Errorf("registration %+v", r)
	}
}

// The next agent removes the sockets of a killed agent, but not the sockets of other drivers.
func TestStaleSockets(t *testing.T) {
	n := newNode(t)
	stale := []string{
		filepath.Join(n.driver.registryDir(), "gpucdi-gpu.nvidia.com-0123abcd.sock"),
		filepath.Join(n.driver.pluginDir(), "dra-0123abcd.sock"),
	}
	kept := []string{
		filepath.Join(n.driver.registryDir(), "gpucdi-other-0123abcd.sock"),
		filepath.Join(n.driver.registryDir(), "gpu.nvidia.com-reg.sock"),
		filepath.Join(n.driver.pluginDir(), "dra.sock"),
	}
	for _, path := range slices.Concat(stale, kept) {
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		listener.SetUnlinkOnClose(false)
		listener.Close()
	}
	kubelet := startKubelet(t, n.cfg.KubeletDir, "")
	defer func() {
		for _, path := range kept {
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
		}
	}()
	n.run()
	kubelet.next(n.driver)
	for _, path := range stale {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s remains, error %v", path, err)
		}
	}
}

// While another process serves a driver of the same name, the driver is not served.
func TestConflict(t *testing.T) {
	same := &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: testDriver}
	for name, tc := range map[string]struct {
		socket string
		other  otherDriver
		unlink bool
	}{
		"NVIDIA's driver":  {"gpu.nvidia.com-reg.sock", otherDriver{info: same}, true},
		"another agent":    {"gpucdi-gpu.nvidia.com-0123abcd.sock", otherDriver{info: same}, true},
		"killed":           {"gpu.nvidia.com-uid-reg.sock", otherDriver{info: same}, false},
		"does not respond": {"gpu.nvidia.com-reg.sock", otherDriver{info: same, hang: make(chan struct{})}, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			stop := serveOther(t, filepath.Join(n.driver.registryDir(), tc.socket), &tc.other)
			n.run()
			eventually(t, "the conflict", func() bool { return strings.Contains(n.driver.Registration().Error, tc.socket) })
			if _, service := n.sockets(); len(service) > 0 {
				t.Errorf("sockets %v", service)
			}
			if c := n.driver.Registration().Conflict; c != ConflictFound {
				t.Errorf("conflict %d", c)
			}
			stop(tc.unlink)
			n.serves(startKubelet(t, n.cfg.KubeletDir, "").next(n.driver))
			if c := n.driver.Registration().Conflict; c != NoConflict {
				t.Errorf("conflict %d after the other driver has ended", c)
			}
		})
	}
}

func TestNoConflict(t *testing.T) {
	n := newNode(t)
	for socket, info := range map[string]*registerapi.PluginInfo{
		"csi-gpu.nvidia.com.sock":     {Type: registerapi.CSIPlugin, Name: testDriver},
		"x.gpu.nvidia.com-reg.sock":   {Type: registerapi.DRAPlugin, Name: "x.gpu.nvidia.com"},
		"other.example.com-reg.sock":  {Type: registerapi.DRAPlugin, Name: testDriver}, // not queried
		"gpucdi-other-0123abcd.sock":  {Type: registerapi.DRAPlugin, Name: "other"},
		"gpu.nvidia.com-anotherx.txt": {Type: registerapi.DevicePlugin, Name: testDriver},
	} {
		serveOther(t, filepath.Join(n.driver.registryDir(), socket), &otherDriver{info: info})
	}
	n.run()
	eventually(t, "the sockets", func() bool { _, service := n.sockets(); return len(service) == 1 })
	if r := n.driver.Registration(); strings.Contains(r.Error, "another process") {
		t.Errorf("registration %+v", r)
	}
}

// Another driver of the same name that starts later does not end the registration, but is reported until it ends.
func TestLaterConflict(t *testing.T) {
	for name, unlink := range map[string]bool{"stopped": true, "killed": false} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			var changes atomic.Int32
			n.cfg.Changed = func() { changes.Add(1) }
			n.restart()
			n.driver.conflictInterval = 20 * time.Millisecond
			kubelet := startKubelet(t, n.cfg.KubeletDir, "")
			n.run()
			p := kubelet.next(n.driver)
			other := &otherDriver{info: &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: testDriver, Endpoint: "/nowhere"}}
			stop := serveOther(t, filepath.Join(n.driver.registryDir(), "gpu.nvidia.com-reg.sock"), other)
			eventually(t, "the conflict", func() bool { return strings.Contains(n.driver.Registration().Error, "gpu.nvidia.com-reg.sock") })
			if r := n.driver.Registration(); r.Since.IsZero() || r.Conflict != ConflictFound {
				t.Errorf("registration %+v", r)
			}
			n.serves(p)
			stop(unlink)
			eventually(t, "the end of the conflict", func() bool { return n.driver.Registration().Error == "" })
			if r := n.driver.Registration(); r.Since.IsZero() || r.Conflict != NoConflict {
				t.Errorf("registration %+v", r)
			}
			if got := changes.Load(); got != 5 {
				t.Errorf("%d changes reported, want 5: three of the conflict state and two of the claim", got)
			}
		})
	}
}

func TestLongPath(t *testing.T) {
	n := newNode(t)
	for _, change := range []func(*Config){
		func(c *Config) { c.KubeletDir = filepath.Join(t.TempDir(), strings.Repeat("x", 100)) },
		func(c *Config) { c.KubeletPath = "/" + strings.Repeat("x", 100) },
	} {
		cfg := n.cfg
		change(&cfg)
		if err := New(cfg, testLog(t)).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "maximum of 107") {
			t.Errorf("Run = %v, want an error with the limit", err)
		}
	}
}

// Both versions of the health stream send the list after each change.
func TestHealth(t *testing.T) {
	n := newNode(t)
	kubelet := startKubelet(t, n.cfg.KubeletDir, "")
	stop := n.run()
	p := kubelet.next(n.driver)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	v1, err := health.NewDRAResourceHealthClient(p.conn).NodeWatchResources(ctx, &health.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	alpha, err := healthalpha.NewDRAResourceHealthClient(p.conn).NodeWatchResources(ctx, &healthalpha.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	check := func(want string) {
		t.Helper()
		current, err := v1.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got := describeHealth(current); got != want {
			t.Errorf("v1: %s, want %s", got, want)
		}
		old, err := alpha.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got := describeHealth(health.NodeWatchResourcesResponseFromV1Alpha1(old)); got != want {
			t.Errorf("v1alpha1: %s, want %s", got, want)
		}
	}
	n.driver.UpdateHealth([]DeviceHealth{
		{ID: "GPU-0"}, {ID: "GPU-1", Fault: gpu.Fault{Code: gpu.FaultECC, Message: "2 errors", Remedy: "reset it"}}, {ID: "other-0"},
	})
	check("node-1/gpu-0 HEALTHY, node-1/gpu-1 UNHEALTHY 2 errors; reset it")
	n.driver.UpdateHealth([]DeviceHealth{{ID: "GPU-0"}})
	check("node-1/gpu-0 HEALTHY")
	n.driver.UpdateHealth(nil)
	check("")
	stop()
	if _, err := v1.Recv(); err == nil {
		t.Error("the stream did not end")
	}
}

func describeHealth(r *health.NodeWatchResourcesResponse) string {
	var devices []string
	for _, d := range r.GetDevices() {
		devices = append(devices, strings.TrimSpace(d.GetDevice().GetPoolName()+"/"+d.GetDevice().GetDeviceName()+" "+d.GetHealth().String()+" "+d.GetMessage()))
	}
	return strings.Join(devices, ", ")
}

// The list is repeated before the kubelet considers it outdated. Nothing is sent before the first update.
func TestHealthRefreshed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		ctx, cancel := context.WithCancel(t.Context())
		streams := &healthStreams{driver: n.driver, running: t.Context()}
		sent := make(chan *health.NodeWatchResourcesResponse, 10)
		ended := make(chan error)
		go func() {
			ended <- streams.serve(ctx, func(r *health.NodeWatchResourcesResponse) error { sent <- r; return nil })
		}()
		time.Sleep(3 * healthTimeout)
		if len(sent) > 0 {
			t.Errorf("sent %v before the first update", <-sent)
		}
		n.driver.UpdateHealth([]DeviceHealth{{ID: "GPU-0", Fault: gpu.Fault{Code: "x", Message: strings.Repeat("ä", 1024)}}})
		synctest.Wait()
		first := <-sent
		if message := first.GetDevices()[0].GetMessage(); len(message) > 1024 || !strings.HasSuffix(message, "ä…") {
			t.Errorf("a message of %d bytes", len(message))
		}
		timeout := time.Duration(first.GetDevices()[0].GetHealthCheckTimeoutSeconds()) * time.Second
		for range 3 {
			begin := time.Now()
			<-sent
			if after := time.Since(begin); after > timeout/2 {
				t.Errorf("sent again after %s, the kubelet's timeout is %s", after, timeout)
			}
		}
		cancel()
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("error %v", err)
		}
	})
}

func TestTooManyStreams(t *testing.T) {
	n := newNode(t)
	streams := &healthStreams{driver: n.driver, running: t.Context()}
	streams.open.Store(maxStreams)
	if err := streams.serve(t.Context(), nil); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("error %v", err)
	}
	if open := streams.open.Load(); open != maxStreams {
		t.Errorf("%d streams are open", open)
	}
}
