package kubelet

import (
	"context"
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

// lost queries the kubelet. It returns the ID of a device that two checks in a row have not found, after an earlier one
// had found all; otherwise, or if the kubelet does not respond, "".
func (h *healthCheck) lost(ctx context.Context) string {
	previous := h.missing
	h.missing = ""
	ctx, cancel := context.WithTimeout(ctx, allocatableTimeout)
	defer cancel()
	advertised := h.plugin.latest.Load().list
	allocatable, err := Allocatable(ctx, h.plugin.cfg.PodResources)
	if err != nil {
		return ""
	}
	for _, d := range advertised.GetDevices() {
		key := allocator.Key{Outlet: h.plugin.cfg.Resource, ID: d.GetID()}
		if d.GetHealth() == api.Healthy && !allocatable[key] && (h.missing == "" || d.GetID() == previous) {
			h.missing = d.GetID()
		}
	}
	h.listed = h.listed || h.missing == "" && len(advertised.GetDevices()) > 0
	if h.listed && h.missing == previous {
		return h.missing
	}
	return ""
}
