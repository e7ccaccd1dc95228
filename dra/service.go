package dra

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/internal/host"
)

// service serves the calls of the kubelet.
type service struct {
	drapb.UnimplementedDRAPluginServer

	driver *Driver
	// running ends with the session: a claim then stops waiting for devices.
	running context.Context
}

// NodePrepareResources prepares claims. An error of one does not affect the others.
func (s *service) NodePrepareResources(ctx context.Context, request *drapb.NodePrepareResourcesRequest) (*drapb.NodePrepareResourcesResponse, error) {
	ctx, cancel := s.until(ctx)
	defer cancel()
	var mu sync.Mutex
	response := &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{}}
	err := s.driver.forEach(ctx, request.GetClaims(), func(ctx context.Context, c claimRef) {
		start := time.Now()
		record, err := s.driver.prepare(ctx, c)
		err = explain(ctx, err)
		s.driver.prepared(c, record, start, err)
		result := &drapb.NodePrepareResourceResponse{}
		if err == nil {
			result.Devices = s.driver.response(record)
		} else {
			result.Error = message(err)
		}
		mu.Lock()
		defer mu.Unlock()
		response.Claims[c.uid] = result
	})
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, message(err))
	}
	return response, nil
}

// NodeUnprepareResources unprepares claims. An error of one does not affect the others.
func (s *service) NodeUnprepareResources(ctx context.Context, request *drapb.NodeUnprepareResourcesRequest) (*drapb.NodeUnprepareResourcesResponse, error) {
	ctx, cancel := s.until(ctx)
	defer cancel()
	var mu sync.Mutex
	response := &drapb.NodeUnprepareResourcesResponse{Claims: map[string]*drapb.NodeUnprepareResourceResponse{}}
	err := s.driver.forEach(ctx, request.GetClaims(), func(ctx context.Context, c claimRef) {
		start := time.Now()
		err := explain(ctx, s.driver.unprepare(ctx, c))
		s.driver.unprepared(c, time.Since(start), err)
		result := &drapb.NodeUnprepareResourceResponse{}
		if err != nil {
			result.Error = message(err)
		}
		mu.Lock()
		defer mu.Unlock()
		response.Claims[c.uid] = result
	})
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, message(err))
	}
	return response, nil
}

// until returns a context that also ends with the session.
func (s *service) until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.running, func() { cancel(errStopping) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// response returns the devices of a prepared claim as the kubelet passes them to containers.
func (d *Driver) response(r Record) []*drapb.Device {
	devices := make([]*drapb.Device, 0, len(r.Devices))
	for _, device := range r.Devices {
		result := &drapb.Device{
			RequestNames: []string{device.Request}, PoolName: d.cfg.Pool, DeviceName: device.Name,
			CdiDeviceIds: append(allocator.CDINames(d.cfg.CDIKind, device.ID, device.Variants), d.cfg.ExtraDevices()...),
		}
		if device.MPSPercentage != 0 {
			result.CdiDeviceIds = append(result.CdiDeviceIds, d.cfg.ClaimCDIKind+"="+r.UID)
		}
		if device.ShareID != "" {
			result.ShareId = &device.ShareID
		}
		devices = append(devices, result)
	}
	return devices
}

// prepared reports the outcome of a call that started at a time.
func (d *Driver) prepared(c claimRef, r Record, start time.Time, err error) {
	took := time.Since(start)
	outcome := c.outcome(took, err)
	if err == nil && !r.Prepared.Before(start) {
		outcome.Devices = r.Devices
	}
	d.cfg.Observer.Prepared(outcome)
	log := d.log.With("claim", host.Printable(c.String(), maxMessage), "uid", host.Printable(c.uid, maxShown))
	if err != nil {
		log.Warn("claim not prepared", "err", message(err))
		return
	}
	var ids []string
	for _, device := range r.Devices {
		ids = append(ids, device.ID)
	}
	log.Info("claim prepared", "devices", ids, "took", took)
}

// unprepared reports the outcome of a call.
func (d *Driver) unprepared(c claimRef, took time.Duration, err error) {
	d.cfg.Observer.Unprepared(c.outcome(took, err))
	log := d.log.With("claim", host.Printable(c.String(), maxMessage), "uid", host.Printable(c.uid, maxShown))
	if err != nil {
		log.Warn("claim not unprepared, the kubelet retries", "err", message(err))
		return
	}
	log.Info("claim unprepared", "took", took)
}

func (c claimRef) outcome(took time.Duration, err error) Outcome {
	return Outcome{Namespace: c.namespace, Name: c.name, UID: c.uid, Took: took, Refusal: refusal(err), Err: err}
}

// explain adds the reason why the context of a failed call ended, which the error of a canceled request lacks.
func explain(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, context.Canceled) {
		cause = errCanceled
	}
	if errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// message returns the text of an error for a response, on one line and bounded.
func message(err error) string { return host.Printable(err.Error(), maxMessage) }
