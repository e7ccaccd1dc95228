package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// aliveTimeout bounds the wait for the reconcile loop. The timeout of the liveness probe in deploy/ is longer.
	aliveTimeout = 5 * time.Second
	// headerTimeout bounds the receipt of a request's header, and requestTimeout the response to it. requestTimeout also
	// bounds each request of Fetch and FetchMetrics.
	requestTimeout = 10 * time.Second
	headerTimeout  = 5 * time.Second
	// listenRetry is the time between two attempts to listen.
	listenRetry = 5 * time.Second
)

// Server serves status, metrics and probes over HTTP, unauthenticated.
type Server struct {
	Address string // to listen at, "host:port"

	// Node returns the current status. It must not wait for the reconcile loop or the driver.
	Node func(context.Context) Node

	// Ready returns nil if a rollout may continue with the next node, or the reason why not.
	Ready func() error

	// Alive returns nil once the reconcile loop responds, or an error when ctx ends.
	Alive func(context.Context) error

	// Metrics handles /metrics; nil disables it.
	Metrics http.Handler
}

// Run serves until ctx ends, and then returns nil. While the address is in use, for example by an agent that is being
// replaced, it retries: allocation does not depend on this server.
func (s *Server) Run(ctx context.Context, log *slog.Logger) error {
	for logged := ""; ctx.Err() == nil; {
		err := s.serve(ctx, log)
		if err == nil {
			return nil
		}
		if err.Error() != logged {
			logged = err.Error()
			log.Error("status and metrics not served, will retry", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenRetry):
		}
	}
	return nil
}

func (s *Server) serve(ctx context.Context, log *slog.Logger) error {
	listener, err := listen(ctx, s.Address)
	if err != nil {
		return fmt.Errorf("listening for HTTP requests: %w; free the address, or set --listen", err)
	}
	log.Info("serving status and metrics", "address", listener.Addr().String())
	server := &http.Server{
		Handler:      refuseBody(s.handler()),
		ReadTimeout:  headerTimeout,
		WriteTimeout: requestTimeout,
		ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	server.SetKeepAlivesEnabled(false) // one request per connection
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving HTTP requests: %w", err)
		}
		return nil
	})
	return group.Wait()
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /status", newCoalescer(http.HandlerFunc(s.status)))
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	if s.Metrics != nil {
		mux.Handle("GET /metrics", newCoalescer(s.Metrics))
	}
	return mux
}

// refuseBody closes the connection of a request with a body. net/http would serve it for half a second longer, even
// after the listener has closed it, and such connections could block Accept.
func refuseBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s.Node(r.Context())) // response.Write never fails
}

// healthz serves the liveness probe: the kubelet restarts an agent whose loop hangs.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), aliveTimeout)
	defer cancel()
	if err := s.Alive(ctx); err != nil {
		http.Error(w, fmt.Sprintf("the reconcile loop has not responded within %s", aliveTimeout), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// readyz serves the readiness probe, which a rollout awaits on each node.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	if err := s.Ready(); err != nil {
		http.Error(w, err.Error()+"; see gpucdi status", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}
