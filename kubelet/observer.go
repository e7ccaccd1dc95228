package kubelet

import (
	"context"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// Observer receives the registrations of a Plugin and the unary gRPC calls to it. code is the gRPC status code. The
// methods may be called concurrently, and must not block: the kubelet waits for them.
type Observer interface {
	Registered(resource string)
	Called(resource, method, code string, took time.Duration)
}

type noObserver struct{}

func (noObserver) Registered(string)                            {}
func (noObserver) Called(string, string, string, time.Duration) {}

// observe is a grpc.UnaryServerInterceptor that reports each call to the Observer.
func (p *Plugin) observe(ctx context.Context, request any, call *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	start := time.Now()
	response, err := handle(ctx, request)
	p.cfg.Observer.Called(p.cfg.Resource, path.Base(call.FullMethod), status.Code(err).String(), time.Since(start))
	return response, err
}
