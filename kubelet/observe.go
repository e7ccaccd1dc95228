package kubelet

import (
	"context"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// Observer is told what happens between a Plugin and its kubelet, which waits
// meanwhile.
type Observer interface {
	Registered(resource string)
	Called(resource, method, code string, took time.Duration)
}

type nobody struct{}

func (nobody) Registered(string)                            {}
func (nobody) Called(string, string, string, time.Duration) {}

// observe is a grpc.UnaryServerInterceptor.
func (p *Plugin) observe(ctx context.Context, request any, call *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	began := time.Now()
	response, err := handle(ctx, request)
	p.cfg.Observer.Called(p.cfg.Resource, path.Base(call.FullMethod), status.Code(err).String(), time.Since(began))
	return response, err
}
