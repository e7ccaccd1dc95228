package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/kubelet"
)

// restoreTimeout bounds the requests for claims without a record, which delay the start of the agent.
const restoreTimeout = 3 * time.Second

// restore adds to the gate the claims that the kubelet's checkpoint lists as prepared, but that have no record.
func (c *claims) restore(ctx context.Context, log *slog.Logger) {
	prepared, err := kubelet.PreparedClaims(c.node, c.kubeletDir)
	if err != nil {
		log.Warn("kubelet's prepared claims unreadable, using the claim records only", "err", err)
	}
	recorded := map[string]bool{}
	for _, claim := range c.gate.Claims() {
		recorded[claim.UID] = true
	}
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	for _, p := range prepared {
		if recorded[p.UID] || len(c.claim(p, nil).Devices) == 0 {
			continue
		}
		allocated, err := c.devicesOf(ctx, p)
		if err != nil {
			log.Warn("claim without a record not read, assuming that it holds all of its devices", "uid", p.UID, "err", err)
		}
		claim := c.claim(p, allocated)
		log.Warn("claim without a record restored from the kubelet's checkpoint", "claim", claim.String(), "uid", p.UID, "devices", claim.Devices, "admin", claim.Admin)
		c.gate.Restore(claim)
	}
}

// readPods adds to the gate the pods that have joined a claim according to the kubelet's checkpoint.
func (c *claims) readPods() error {
	if c == nil {
		return nil
	}
	began := time.Now()
	prepared, err := kubelet.PreparedClaims(c.node, c.kubeletDir)
	c.join(prepared, began)
	return err
}

// join adds to the gate the pods that have joined a claim. prepared are the claims in the kubelet's checkpoint, nil if
// they are not known, and began is a time before they were read.
func (c *claims) join(prepared []kubelet.PreparedClaim, began time.Time) {
	if c == nil || prepared == nil {
		return
	}
	pods := map[string][]string{}
	for _, p := range prepared {
		pods[p.UID] = p.Pods
	}
	c.gate.Join(pods, began)
}

// devicesOf returns the devices that are allocated to a claim, because the kubelet's checkpoint lacks their amounts and
// admin access. Without a response of the API server, the claim holds all of its devices.
func (c *claims) devicesOf(ctx context.Context, p kubelet.PreparedClaim) ([]cluster.ClaimDevice, error) {
	claim, err := c.client.Claim(ctx, p.Namespace, p.Name)
	if err != nil || claim.UID != p.UID {
		return nil, err
	}
	return claim.Devices, nil
}

// claim converts a claim of the kubelet's checkpoint. Devices of other drivers are omitted. allocated are its devices
// according to the API server, nil if they are not known.
func (c *claims) claim(p kubelet.PreparedClaim, allocated []cluster.ClaimDevice) allocator.Claim {
	claim := allocator.Claim{UID: p.UID, Namespace: p.Namespace, Name: p.Name, Pods: p.Pods}
	admin := map[string]bool{}
	for _, d := range allocated {
		if d.AdminAccess {
			admin[d.Request] = true
		}
	}
	for _, d := range p.Devices {
		id, ok := dra.DeviceID(d.Name)
		switch {
		case !ok || d.Driver != c.driverName || d.Pool != c.poolName:
		case len(d.Requests) == 1 && admin[d.Requests[0]]:
			claim.Admin = append(claim.Admin, id)
		default:
			claim.Devices = append(claim.Devices, id)
		}
	}
	claim.Amounts = dra.Amounts(allocated, c.driverName, c.poolName)
	return claim
}

// kubeletDevices implements dra.Config.KubeletDevices.
func (c *claims) kubeletDevices(uid string) (names []string, err error) {
	prepared, err := kubelet.PreparedClaims(c.node, c.kubeletDir)
	for _, p := range prepared {
		for _, d := range p.Devices {
			if p.UID == uid && d.Driver == c.driverName && d.Pool == c.poolName {
				names = append(names, d.Name)
			}
		}
	}
	return names, err
}
