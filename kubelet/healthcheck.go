package kubelet

import (
	"context"
	"fmt"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpucdi/gpucdi/allocator"
)

// allocatableTimeout bounds the request for the devices that the kubelet considers healthy.
const allocatableTimeout = 2 * time.Second

// healthCheck detects that the kubelet no longer considers a device healthy that the plugin advertises as healthy. Up
// to Kubernetes 1.36 that is the case when another plugin registers the same resource and then ends: the kubelet marks
// the devices of both unhealthy, and keeps this plugin's stream open.
type healthCheck struct {
	plugin  *Plugin
	listed  bool   // the kubelet has considered all devices healthy; otherwise this kubelet cannot be checked
	missing string // device ID that the previous check has not found
}

// lost queries the kubelet. It returns a *lostError if two checks in a row have not found a device, after an earlier one
// had found all. A kubelet that does not respond is not checked.
func (h *healthCheck) lost(ctx context.Context) error {
	if h.plugin.cfg.PodResources == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, allocatableTimeout)
	defer cancel()
	advertised := h.plugin.latest.Load().list.GetDevices()
	allocatable, err := Allocatable(ctx, h.plugin.cfg.PodResources)
	if err != nil {
		h.missing = ""
		return nil
	}
	previous, resource := h.missing, h.plugin.cfg.Resource
	h.missing = firstMissing(advertised, resource, allocatable, previous)
	h.listed = h.listed || h.missing == "" && len(advertised) > 0
	if !h.listed || h.missing == "" || h.missing != previous {
		return nil
	}
	return &lostError{reason: fmt.Sprintf("kubelet does not advertise %s, although it is healthy; another plugin may have registered %s",
		h.missing, resource)}
}

// firstMissing returns the ID of a healthy device that is not allocatable: preferred if it is one, "" if there is none.
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
