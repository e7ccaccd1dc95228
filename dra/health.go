package dra

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
)

const (
	// healthTimeout is the age at which the kubelet considers the health of a device outdated, and healthInterval the
	// interval at which it is sent.
	healthTimeout  = time.Minute
	healthInterval = 20 * time.Second
	// maxHealthMessage bounds a message, in bytes. The kubelet truncates longer ones, possibly within a character.
	maxHealthMessage = 1024
	// maxStreams bounds the streams of a session. The kubelet opens one.
	maxStreams = 8
)

// DeviceHealth is the health of a device.
type DeviceHealth struct {
	ID    string    // in the ledger
	Fault gpu.Fault // the zero Fault if it is healthy
}

// healthList is an immutable list of devices.
type healthList struct {
	devices    []DeviceHealth // nil before the first update
	superseded chan struct{}  // closed when a later list exists
}

// UpdateHealth replaces the health that the kubelet receives for all devices of the ResourceSlices. The slice must not
// be modified afterwards. It never blocks: a kubelet that reads slowly skips all but the latest list.
func (d *Driver) UpdateHealth(devices []DeviceHealth) {
	d.update.Lock()
	defer d.update.Unlock()
	if devices == nil {
		devices = []DeviceHealth{}
	}
	next := &healthList{devices: devices, superseded: make(chan struct{})}
	close(d.health.Swap(next).superseded)
}

// healthStreams serves the health streams of a session.
type healthStreams struct {
	driver  *Driver
	running context.Context // ends with the session
	open    atomic.Int32
}

// serve sends the latest list immediately, after each change, and often enough that the kubelet does not consider it
// outdated, until ctx or the session ends. Before the first update it sends nothing.
func (s *healthStreams) serve(ctx context.Context, send func(*health.NodeWatchResourcesResponse) error) error {
	if s.open.Add(1) > maxStreams {
		s.open.Add(-1)
		return status.Errorf(codes.ResourceExhausted, "opening a NodeWatchResources stream: %d are open; close one", maxStreams)
	}
	defer s.open.Add(-1)
	refresh := time.NewTicker(healthInterval)
	defer refresh.Stop()
	for {
		current := s.driver.health.Load()
		if current.devices != nil {
			if err := send(s.driver.healthResponse(current.devices)); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-s.running.Done():
			return nil
		case <-current.superseded:
		case <-refresh.C:
		}
	}
}

// healthResponse returns the message for a list of devices.
func (d *Driver) healthResponse(devices []DeviceHealth) *health.NodeWatchResourcesResponse {
	now := time.Now().Unix()
	response := &health.NodeWatchResourcesResponse{}
	for _, device := range devices {
		name, ok := DeviceName(device.ID)
		if !ok {
			continue // it is not in the ResourceSlices
		}
		result := &health.DeviceHealth{
			Device:                    &health.DeviceIdentifier{PoolName: d.cfg.Pool, DeviceName: name},
			Health:                    health.HealthStatus_HEALTHY,
			LastUpdatedTime:           now,
			HealthCheckTimeoutSeconds: int64(healthTimeout / time.Second),
		}
		if !device.Fault.None() {
			result.Health = health.HealthStatus_UNHEALTHY
			result.Message = host.Printable(device.Fault.String(), maxHealthMessage)
		}
		response.Devices = append(response.Devices, result)
	}
	return response
}

// healthServer serves the health of devices to the kubelet.
type healthServer struct {
	health.UnimplementedDRAResourceHealthServer
	streams *healthStreams
}

// NodeWatchResources streams the health of all devices.
func (s *healthServer) NodeWatchResources(_ *health.NodeWatchResourcesRequest, stream grpc.ServerStreamingServer[health.NodeWatchResourcesResponse]) error {
	return s.streams.serve(stream.Context(), stream.Send)
}
