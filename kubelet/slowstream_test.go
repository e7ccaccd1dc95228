package kubelet

import (
	"context"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// slowStream is an unbuffered ListAndWatch stream. Send passes each list to sends and blocks until the test sends to
// received.
type slowStream struct {
	grpc.ServerStream
	ctx      context.Context
	sends    chan *api.ListAndWatchResponse
	received chan struct{}
}

func (s *slowStream) Context() context.Context { return s.ctx }

func (s *slowStream) Send(list *api.ListAndWatchResponse) error {
	s.sends <- list
	<-s.received
	return nil
}
