package kubelet

import (
	"context"

	"google.golang.org/grpc"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// slowStream is a ListAndWatch stream without any buffer: it shows the test
// what is sent, and the sender waits until the test says that it is taken.
type slowStream struct {
	grpc.ServerStream
	ctx   context.Context
	sends chan *api.ListAndWatchResponse
	taken chan struct{}
}

func (s *slowStream) Context() context.Context { return s.ctx }

func (s *slowStream) Send(list *api.ListAndWatchResponse) error {
	s.sends <- list
	<-s.taken
	return nil
}
