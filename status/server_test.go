package status_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server until the test ends, and returns its address.
func serve(t *testing.T, s *status.Server) string {
	t.Helper()
	if s.Address == "" {
		s.Address = freeAddress(t)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return s.Address
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// get returns the status code and the body of a response. It retries until the server listens.
func get(t *testing.T, address, path string) (int, string) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		response, err := http.Get("http://" + address + path)
		if err != nil {
			if time.Since(start) > 30*time.Second {
				t.Fatal(err)
			}
			continue
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
}

func TestServer(t *testing.T) {
	hung, ready := false, false
	want := status.Node{
		Name:    "node",
		Version: "v1",
		Driver:  status.Driver{Driver: gpu.Driver{Version: "580.95.05", CUDA: gpu.CUDAVersion{Major: 13}}, Root: "/"},
		Devices: []status.Device{{ID: "GPU-a", Resource: "nvidia.com/gpu", GPU: "GPU-a",
			Fault:       gpu.Fault{Code: "xid_79", Message: "XID 79", Since: time.Unix(1, 0).UTC()},
			AllocatedTo: []status.Holder{{Namespace: "default", Pod: "pod", Container: "main"}}}},
	}
	address := serve(t, &status.Server{
		Node: func(context.Context) status.Node { return want },
		Ready: func() error {
			if !ready {
				return errors.New("not registered")
			}
			return nil
		},
		Alive: func(context.Context) error {
			if hung {
				return errors.New("hung")
			}
			return nil
		},
	})
	for _, tc := range []struct {
		path        string
		hung, ready bool
		code        int
	}{
		{"/healthz", false, false, http.StatusOK},
		{"/healthz", true, true, http.StatusServiceUnavailable},
		{"/readyz", false, false, http.StatusServiceUnavailable},
		{"/readyz", true, true, http.StatusOK},
		{"/metrics", false, true, http.StatusNotFound},
		{"/nothing", false, true, http.StatusNotFound},
	} {
		hung, ready = tc.hung, tc.ready
		if code, body := get(t, address, tc.path); code != tc.code {
			t.Errorf("%+v: status code %d, %s", tc, code, body)
		}
	}
	got, err := status.Fetch(t.Context(), address)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Fetch = %+v, %v; want %+v", got, err, want)
	}
}

// The server waits for an address that is in use.
func TestAddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := make(lines, 16)
	s := &status.Server{Address: taken.Addr().String(), Ready: func() error { return nil }}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx, slog.New(slog.NewTextHandler(log, nil))) }()
	if line := <-log; !strings.Contains(line, "--listen") {
		t.Errorf("logged %s", line)
	}
	taken.Close()
	code, _ := get(t, s.Address, "/readyz")
	end()
	if err := <-ended; code != http.StatusOK || err != nil {
		t.Errorf("/readyz: status code %d; Run returned %v", code, err)
	}
	http.DefaultClient.CloseIdleConnections()
}

// lines delivers the lines of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}
