package main

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// The net time of a call is that beyond the mean of the empty calls before and after it.
func TestNetTimes(t *testing.T) {
	const us = time.Microsecond
	for _, tc := range []struct{ before, took, after, want time.Duration }{
		{50 * us, 80 * us, 50 * us, 30 * us},
		{40 * us, 80 * us, 60 * us, 30 * us},
		{60 * us, 80 * us, 40 * us, 30 * us},
		{90 * us, 80 * us, 80 * us, -5 * us}, // noise
	} {
		var got times
		got.add(tc.before, tc.took, tc.after)
		if !slices.Equal(got.net, []time.Duration{tc.want}) || !slices.Equal(got.total, []time.Duration{tc.took}) {
			t.Errorf("a call of %v between %v and %v has the net times %v and the total times %v, want %v", tc.took, tc.before, tc.after, got.net, got.total, tc.want)
		}
	}

	var all times
	all.add(10*us, 30*us, 10*us)
	all.add(10*us, 90*us, 20*us)
	all.add(10*us, 25*us, 40*us)
	if got, want := all.figure(), (figure{"+20 µs, 30 µs in total", 20_000}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A turn has an empty call before and after each of its calls.
func TestRepeat(t *testing.T) {
	server := newPluginServer(t)
	p := &plugin{conn: server.conn}
	var got times
	if err := p.repeat(t.Context(), allocate([]string{"GPU-a"}), &got); err != nil {
		t.Fatal(err)
	}
	if want := "empty" + strings.Repeat(" GPU-a empty", turn); strings.Join(server.calls, " ") != want {
		t.Errorf("the plugin received %v, want %v", server.calls, want)
	}
	if len(got.net) != turn || len(got.total) != turn {
		t.Errorf("got %d net times of %d calls, want %d", len(got.net), len(got.total), turn)
	}
}

// A response with a different number of devices than requested is an error, so that it is not measured.
func TestPrefer(t *testing.T) {
	client := api.NewDevicePluginClient(newPluginServer(t).conn)
	if err := prefer(2, []string{"GPU-a", "GPU-b", "GPU-c"})(t.Context(), client); err != nil {
		t.Error(err)
	}
	if err := prefer(2, []string{"GPU-a"})(t.Context(), client); err == nil || err.Error() != "1 devices preferred, want 2" {
		t.Errorf("one device instead of two returns %v", err)
	}
}

// pluginServer is a device plugin that records its calls.
type pluginServer struct {
	api.UnimplementedDevicePluginServer
	conn *grpc.ClientConn // to the server

	mu    sync.Mutex
	calls []string
}

func newPluginServer(t *testing.T) *pluginServer {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, s := grpc.NewServer(), new(pluginServer)
	api.RegisterDevicePluginServer(server, s)
	go func() { _ = server.Serve(listener) }() // until Stop
	t.Cleanup(server.Stop)
	if s.conn, err = grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.conn.Close() })
	return s
}

func (s *pluginServer) record(call string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
}

func (s *pluginServer) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	s.record("empty")
	return &api.DevicePluginOptions{}, nil
}

func (s *pluginServer) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	s.record(strings.Join(request.GetContainerRequests()[0].GetDevicesIds(), ","))
	return &api.AllocateResponse{}, nil
}

// GetPreferredAllocation returns the first available devices.
func (s *pluginServer) GetPreferredAllocation(_ context.Context, request *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	c := request.GetContainerRequests()[0]
	ids := c.GetAvailableDeviceIDs()
	return &api.PreferredAllocationResponse{ContainerResponses: []*api.ContainerPreferredAllocationResponse{
		{DeviceIDs: ids[:min(len(ids), int(c.GetAllocationSize()))]},
	}}, nil
}
