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
	// aliveWithin bounds the answer of the agent's reconcile loop. The liveness probe in
	// deploy/ waits longer.
	aliveWithin = 5 * time.Second
	// requestWithin bounds a request with its response, and headerWithin the first part:
	// a client sends its header at once.
	requestWithin = 10 * time.Second
	headerWithin  = 5 * time.Second
	// listenRetry is the time between two tries to listen.
	listenRetry = 5 * time.Second
)

// Server answers people, monitoring and the kubelet's probes.
type Server struct {
	Address string // to listen at: "host:port"

	// Node says what the agent knows. It must wait neither for the agent's loop
	// nor for the driver.
	Node func(context.Context) Node

	// Ready returns why the agent does not advertise what it should; nil if it does.
	Ready func() error

	// Alive asks the agent's loop for a sign of life, until ctx ends.
	Alive func(context.Context) error

	// Metrics answers /metrics; nil for none.
	Metrics http.Handler
}

// Run serves until ctx ends. An address that cannot be had, as while an earlier
// agent still has it, is tried again: GPUs are served without this too.
func (s *Server) Run(ctx context.Context, log *slog.Logger) error {
	for said := ""; ctx.Err() == nil; {
		err := s.serve(ctx, log)
		if err == nil {
			return nil
		}
		if err.Error() != said {
			said = err.Error()
			log.Error("no status and no metrics until the address is free", "err", err)
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
		return fmt.Errorf("listening for requests, see --listen: %w", err)
	}
	log.Info("serving status and metrics", "address", listener.Addr().String())
	server := &http.Server{
		Handler:      withoutBody(s.handler()),
		ReadTimeout:  headerWithin,
		WriteTimeout: requestWithin,
		ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	server.SetKeepAlivesEnabled(false) // a connection has one request
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving requests: %w", err)
		}
		return nil
	})
	return group.Wait()
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /status", newPage(http.HandlerFunc(s.status)))
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	if s.Metrics != nil {
		mux.Handle("GET /metrics", newPage(s.Metrics))
	}
	return mux
}

// withoutBody hangs up on requests with a body. net/http would answer them, and then keep
// a goroutine for half a second without the connection, however many come.
func withoutBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s.Node(r.Context())) // a page's response takes everything
}

// healthz is for a liveness probe: a loop that is stuck is started anew.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), aliveWithin)
	defer cancel()
	if err := s.Alive(ctx); err != nil {
		http.Error(w, fmt.Sprintf("the reconcile loop has not answered within %s", aliveWithin), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// readyz is for a readiness probe: a roll-out continues with the next node when this one can
// allocate GPUs.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	if err := s.Ready(); err != nil {
		http.Error(w, err.Error()+"; see gpucdi status", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}
