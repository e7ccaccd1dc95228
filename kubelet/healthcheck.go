package kubelet

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/allocator"
)

const (
	// allocatableTimeout bounds the request for the devices that the kubelet considers healthy.
	allocatableTimeout = 2 * time.Second
	// settledAfter is the time for the kubelet to process a list, which includes an fsync of its checkpoint. If the
	// kubelet takes longer, the plugin registers again unnecessarily.
	settledAfter = 10 * time.Second
)

// healthCheck detects a device that the plugin advertises as healthy, but the kubelet no longer considers healthy. Up
// to Kubernetes 1.36, this happens when another plugin registers the same resource and then ends: the kubelet marks
// the devices of both unhealthy, and keeps this plugin's stream open. The next list on that stream would make the
// devices healthy again, but the kubelet would still call the other plugin, and reject every pod.
//
// It is safe for concurrent use.
type healthCheck struct {
	plugin *Plugin
	newest atomic.Pointer[sentList] // sent on any stream

	mu      sync.Mutex
	listed  bool   // the kubelet has reported all healthy devices at least once; until then, it cannot be checked
	missing string // ID of a device that the kubelet lacked in the previous periodic check; "" if there was none
}

// sentList is a list and the time when it was sent.
type sentList struct {
	devices []*api.Device
	at      time.Time
}

// sending records a list that a stream is about to send.
func (h *healthCheck) sending(list *api.ListAndWatchResponse) {
	h.newest.Store(&sentList{list.GetDevices(), time.Now()})
}

// periodic queries the kubelet. It returns a *lostError if the kubelet lacks the same device in two checks in a row,
// after it has reported all healthy devices at least once. A kubelet that does not respond is not checked.
func (h *healthCheck) periodic(ctx context.Context) error {
	missing, known := h.query(ctx, func() []*api.Device { return h.plugin.latest.Load().list.GetDevices() })
	h.mu.Lock()
	defer h.mu.Unlock()
	previous := h.missing
	h.missing = missing
	if !known || missing == "" || missing != previous {
		return nil
	}
	return h.lost(missing)
}

// beforeSend is the check of a stream before it replaces list. While the kubelet lacks a healthy device of list,
// beforeSend waits until the kubelet must have processed the newest list, and then returns a *lostError. Clients other
// than the kubelet can open streams, too, and the newest list may have been sent on another stream. Any stream may be
// the kubelet's, so only devices that are healthy in both lists count.
func (h *healthCheck) beforeSend(ctx context.Context, list *api.ListAndWatchResponse) error {
	for {
		var newest *sentList
		missing, known := h.query(ctx, func() []*api.Device {
			newest = h.newest.Load()
			return healthyInBoth(list.GetDevices(), newest.devices)
		})
		switch {
		case !known || missing == "":
			return nil
		case time.Since(newest.at) >= settledAfter:
			return h.lost(missing)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settledAfter / 100):
		}
	}
}

func (h *healthCheck) lost(missing string) error {
	return &lostError{reason: fmt.Sprintf("kubelet does not advertise %s, although it is healthy; another plugin may have registered %s",
		missing, h.plugin.cfg.Resource)}
}

// query returns the ID of a healthy device of the list that the kubelet does not consider healthy: h.missing if it is
// such a device, "" if there is none. known is false if this kubelet cannot be checked, or does not respond. query
// calls list after the kubelet has responded, so that the response is not newer than the list.
func (h *healthCheck) query(ctx context.Context, list func() []*api.Device) (missing string, known bool) {
	if h.plugin.cfg.PodResources == "" {
		return "", false
	}
	ctx, cancel := context.WithTimeout(ctx, allocatableTimeout)
	defer cancel()
	allocatable, err := Allocatable(ctx, h.plugin.cfg.PodResources)
	if err != nil {
		return "", false
	}
	devices := list()
	h.mu.Lock()
	defer h.mu.Unlock()
	missing = firstMissing(devices, h.plugin.cfg.Resource, allocatable, h.missing)
	h.listed = h.listed || missing == "" && len(healthyInBoth(devices, devices)) > 0
	return missing, h.listed
}

func healthyInBoth(a, b []*api.Device) (both []*api.Device) {
	healthy := map[string]bool{}
	for _, d := range a {
		healthy[d.GetID()] = d.GetHealth() == api.Healthy
	}
	for _, d := range b {
		if healthy[d.GetID()] {
			both = append(both, d) // even if it is unhealthy in b, because firstMissing skips it
		}
	}
	return both
}

// firstMissing returns the ID of a healthy device that is not allocatable: preferred if it is such a device, "" if
// there is none.
func firstMissing(advertised []*api.Device, resource string, allocatable map[allocator.Key]bool, preferred string) (missing string) {
	for _, d := range advertised {
		if d.GetHealth() != api.Healthy || allocatable[allocator.Key{Outlet: resource, ID: d.GetID()}] {
			continue
		}
		if d.GetID() == preferred {
			return preferred
		}
		if missing == "" {
			missing = d.GetID()
		}
	}
	return missing
}
