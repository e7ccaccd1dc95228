package kubelet

import (
	"context"
	"errors"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/sockets"
)

// server serves the device plugin API for one registration.
type server struct {
	api.UnimplementedDevicePluginServer

	plugin   *Plugin
	preStart bool          // the registration requires calls of PreStartContainer
	stopping chan struct{} // closed to end the streams
	streams  streams
	health   healthCheck
	lost     chan error // receives the *lostError that a stream has found; has a buffer of one
}

func newServer(p *Plugin) *server {
	return &server{plugin: p, preStart: p.latest.Load().preStart, stopping: make(chan struct{}), streams: streams{changed: make(chan struct{}, 1)},
		health: healthCheck{plugin: p}, lost: make(chan error, 1)}
}

// maxStreams bounds the ListAndWatch streams of a server, each of which can hold an encoded list of a megabyte. The
// kubelet opens one directly after the registration, usually before other clients find the socket.
const maxStreams = 8

// streams counts the ListAndWatch streams of a server. The kubelet keeps one open while the plugin is registered.
type streams struct {
	opened, open atomic.Int32
	changed      chan struct{} // receives a value after each change; has a buffer of one
}

// add counts a new stream, unless too many are open.
func (s *streams) add() error {
	if s.open.Add(1) > maxStreams {
		s.open.Add(-1)
		return status.Errorf(codes.ResourceExhausted, "opening a ListAndWatch stream: %d are open; close one", maxStreams)
	}
	s.opened.Add(1)
	sockets.Notify(s.changed)
	return nil
}

func (s *streams) remove() {
	s.open.Add(-1)
	sockets.Notify(s.changed)
}

func (s *server) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return s.options(), nil
}

func (s *server) options() *api.DevicePluginOptions {
	return &api.DevicePluginOptions{GetPreferredAllocationAvailable: true, PreStartRequired: s.preStart}
}

// ListAndWatch sends the list of devices initially, after each change, and after Resend. A slow reader skips all but
// the latest list.
func (s *server) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	if err := s.streams.add(); err != nil {
		return err
	}
	defer s.streams.remove()
	list := s.plugin.lists.begin()
	defer s.plugin.lists.end(list)
	var sent *snapshot
	for {
		current := s.plugin.latest.Load()
		if current.list != nil && current.preStart != s.preStart {
			s.lose(&lostError{reason: "the option PreStartRequired has changed", resetBackoff: true})
			<-s.stopping
			return nil
		}
		// The kubelet writes its checkpoint for every list, even an unchanged one.
		if current.list != nil && (sent == nil || sent.resends != current.resends || !proto.Equal(sent.list, current.list)) {
			if sent != nil && s.isLost(stream.Context(), sent.list) {
				<-s.stopping
				return nil // the kubelet opens a stream to the next server
			}
			s.health.sending(current.list) // before the kubelet can process it
			if err := stream.Send(current.list); err != nil {
				return err
			}
			sent = current
			s.plugin.lists.sent(list)
			s.plugin.cfg.Sent()
		}
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-s.stopping:
			return nil
		case <-current.superseded:
		}
	}
}

// isLost reports whether the registration is lost, and ends the server if it is. A stream calls it before it replaces a
// list.
func (s *server) isLost(ctx context.Context, list *api.ListAndWatchResponse) bool {
	err := s.health.beforeSend(ctx, list)
	if err == nil {
		return false
	}
	s.lose(err)
	return true
}

// lose makes the plugin register again.
func (s *server) lose(err error) {
	select {
	case s.lost <- err:
	default: // another stream has reported a loss
	}
}

func (s *server) GetPreferredAllocation(_ context.Context, request *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	current := s.plugin.latest.Load()
	response := &api.PreferredAllocationResponse{}
	for _, c := range request.GetContainerRequests() {
		ids, err := current.Resource.Prefer(c.GetAvailableDeviceIDs(), c.GetMustIncludeDeviceIDs(),
			int(c.GetAllocationSize()))
		if err != nil {
			return nil, grpcError(err)
		}
		response.ContainerResponses = append(response.ContainerResponses,
			&api.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return response, nil
}

// grpcError converts an error of the allocator to a gRPC status. Its message has one line, since the kubelet puts it in
// the pod's status.
func grpcError(err error) error {
	code := codes.Internal
	switch {
	case errors.Is(err, allocator.ErrMalformed):
		code = codes.InvalidArgument
	case errors.Is(err, allocator.ErrUnknown):
		code = codes.NotFound
	case errors.Is(err, allocator.ErrUnhealthy):
		code = codes.FailedPrecondition
	}
	return status.Error(code, gpu.OneLine(err))
}
