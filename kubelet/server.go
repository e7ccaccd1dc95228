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
)

// server answers the kubelet's calls for one registration.
type server struct {
	api.UnimplementedDevicePluginServer

	plugin   *Plugin
	stopping chan struct{} // closed to end the streams
	streams  streams
}

func newServer(p *Plugin) *server {
	return &server{plugin: p, stopping: make(chan struct{}), streams: streams{changed: make(chan struct{}, 1)}}
}

// maxStreams bounds the ListAndWatch streams of a server, each of which can hold an encoded
// list of a megabyte. The kubelet has one, and opens it before anybody else knows the socket.
const maxStreams = 8

// streams counts the ListAndWatch streams of a server. The kubelet holds one
// as long as it knows the plugin.
type streams struct {
	opened, open atomic.Int32
	changed      chan struct{} // gets a value after a change; holds one at most
}

// add counts a stream, unless there are too many.
func (s *streams) add() error {
	if s.open.Add(1) > maxStreams {
		s.open.Add(-1)
		return status.Errorf(codes.ResourceExhausted, "opening a ListAndWatch stream: %d are open already; close one", maxStreams)
	}
	s.opened.Add(1)
	notify(s.changed)
	return nil
}

func (s *streams) remove() {
	s.open.Add(-1)
	notify(s.changed)
}

// notify leaves word in a channel that holds one value, if none is left yet.
func notify(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

func (s *server) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return options(), nil
}

func options() *api.DevicePluginOptions {
	return &api.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

// ListAndWatch sends the devices, and again after each change. A slow reader gets the
// latest list only.
func (s *server) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	if err := s.streams.add(); err != nil {
		return err
	}
	defer s.streams.remove()
	list := s.plugin.lists.begin()
	defer s.plugin.lists.end(list)
	var sent *snapshot
	for {
		now := s.plugin.latest.Load()
		// The kubelet writes a checkpoint for every list that it receives.
		if now.list != nil && (sent == nil || sent.resends != now.resends || !proto.Equal(sent.list, now.list)) {
			if err := stream.Send(now.list); err != nil {
				return err
			}
			sent = now
			s.plugin.lists.sent(list)
			s.plugin.cfg.Sent()
		}
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-s.stopping:
			return nil
		case <-now.superseded:
		}
	}
}

func (s *server) GetPreferredAllocation(_ context.Context, request *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	now := s.plugin.latest.Load()
	response := &api.PreferredAllocationResponse{}
	for _, c := range request.GetContainerRequests() {
		ids, err := now.Resource.Prefer(c.GetAvailableDeviceIDs(), c.GetMustIncludeDeviceIDs(), int(c.GetAllocationSize()))
		if err != nil {
			return nil, refusal(err)
		}
		response.ContainerResponses = append(response.ContainerResponses,
			&api.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return response, nil
}

// PreStartContainer has nothing to do, and the options say so: the kubelet
// does not call it.
func (s *server) PreStartContainer(context.Context, *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	return &api.PreStartContainerResponse{}, nil
}

// refusal gives an error of the allocator the gRPC code that says whose fault
// it is. The kubelet shows the message in the pod's status, as one line.
func refusal(err error) error {
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
