package dra

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/stats"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthalpha "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/internal/sockets"
)

// Registration is the state of the driver's registration with the kubelet.
type Registration struct {
	Since time.Time // when the kubelet registered the driver; zero if it is not registered

	// Error is why the driver is not registered. While the driver is registered, it is set if another process also serves
	// a driver of this name, because the kubelet calls only one of them, or if that cannot be checked.
	Error string

	// Conflict is ConflictFound while another process serves a driver of this name on the node. The node's ResourceSlices
	// must then not contain devices of this driver.
	Conflict Conflict
}

// Conflict is the result of the latest conflict check that succeeded.
type Conflict int

// The results of conflict checks.
const (
	ConflictUnknown Conflict = iota // no check has succeeded yet
	NoConflict
	ConflictFound
)

// Registration returns the current state of the registration. It never blocks.
func (d *Driver) Registration() Registration { return d.registration.current() }

// registrationState is the state of the current session, see Driver.session. The kubelet registers a socket that it
// finds, and stays connected to the driver while it is registered.
type registrationState struct {
	mu          sync.Mutex
	session     *registrar
	registered  time.Time // when the kubelet reported the registration; zero: not registered
	connections int       // to the service socket
	problem     string    // why the driver is not registered; ignored while it is registered
	warning     string    // error of the latest conflict check while the driver is registered; empty: none
	conflict    Conflict  // kept between sessions
}

func (s *registrationState) current() Registration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.registered.IsZero() || s.connections == 0 {
		return Registration{Error: s.problem, Conflict: s.conflict}
	}
	return Registration{Since: s.registered, Error: s.warning, Conflict: s.conflict}
}

// wasRegistered reports whether the kubelet registered the driver in the current session.
func (s *registrationState) wasRegistered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.registered.IsZero()
}

// begin starts a session; nil only ends the current one.
func (s *registrationState) begin(session *registrar, problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session, s.registered, s.connections, s.problem, s.warning = session, time.Time{}, 0, problem, ""
}

// update changes the state unless the session has ended.
func (r *registrar) update(change func(s *registrationState)) {
	s := &r.driver.registration
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == r {
		change(s)
		sockets.Notify(r.changed)
	}
}

// setWarning sets the error of the latest conflict check, which is empty if there is none.
func (s *registrationState) setWarning(message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warning = message
}

// setConflict sets the result of a conflict check, and reports whether it has changed.
func (s *registrationState) setConflict(c Conflict) (changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = s.conflict != c
	s.conflict = c
	return changed
}

// registrar serves one registration socket, and counts the connections to the service socket that it names.
type registrar struct {
	registerapi.UnimplementedRegistrationServer

	driver  *Driver
	service string        // file name of the service socket
	changed chan struct{} // receives a value after each change; has a buffer of one
	log     *slog.Logger
}

// GetInfo returns the services of the driver. Kubelet 1.36 supports only v1alpha1 of the health service.
func (r *registrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	d := r.driver
	return &registerapi.PluginInfo{
		Type: registerapi.DRAPlugin,
		Name: d.cfg.Driver,
		// The path as the kubelet sees it.
		Endpoint:          filepath.Join(d.cfg.KubeletPath, pluginsDir, d.cfg.Driver, r.service),
		SupportedVersions: []string{drapb.DRAPluginService, health.DRAResourceHealthService, healthalpha.DRAResourceHealthService},
	}, nil
}

// NotifyRegistrationStatus receives the result of the registration. The kubelet retries a failed one.
func (r *registrar) NotifyRegistrationStatus(_ context.Context, result *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if result.GetPluginRegistered() {
		r.update(func(s *registrationState) { s.registered, s.problem = time.Now(), disconnected })
		r.driver.cfg.Observer.Registered()
		r.log.Info("registered with kubelet")
	} else {
		reason := "the kubelet refused the registration: " + host.Printable(result.GetError(), maxMessage)
		r.update(func(s *registrationState) { s.registered, s.problem = time.Time{}, reason })
		r.log.Warn("registration refused, the kubelet retries", "err", reason)
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// disconnected is the problem of a registration without a connection.
const disconnected = "the kubelet is not connected"

// The methods of a stats.Handler, which counts connections.
var _ stats.Handler = (*registrar)(nil)

// HandleConn counts the connections.
func (r *registrar) HandleConn(_ context.Context, event stats.ConnStats) {
	switch event.(type) {
	case *stats.ConnBegin:
		r.update(func(s *registrationState) { s.connections++ })
	case *stats.ConnEnd:
		r.update(func(s *registrationState) { s.connections-- })
	}
}

// TagConn does nothing.
func (r *registrar) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// TagRPC does nothing.
func (r *registrar) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC does nothing.
func (r *registrar) HandleRPC(context.Context, stats.RPCStats) {}
