package agent

import (
	"context"
	"log/slog"
	"time"

	"github.com/gpucdi/gpucdi/kubelet"
)

// staleInterval is the time between two reads of the kubelet's checkpoint. A claim is stale if two consecutive reads
// lack it.
const staleInterval = time.Minute

// watchStale releases stale claims, for example after the kubelet's directory was recreated. The kubelet keeps a claim
// in its checkpoint from before it is prepared until after it is unprepared.
func (c *claims) watchStale(ctx context.Context, log *slog.Logger) {
	var missing map[string]bool
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(staleInterval):
		}
		missing = c.releaseStale(ctx, missing, log)
	}
}

// releaseStale releases the claims that the kubelet's checkpoint lacks and also lacked at the previous read
// (before). It returns the UIDs of the other claims that the checkpoint lacks.
func (c *claims) releaseStale(ctx context.Context, before map[string]bool, log *slog.Logger) map[string]bool {
	missing := c.missing()
	for uid := range missing {
		if !before[uid] {
			continue
		}
		if err := c.driver.ReleaseStale(ctx, uid, func() bool { return c.missing()[uid] }); err != nil {
			log.Warn("stale claim not released, will retry", "uid", uid, "err", err)
			continue
		}
		delete(missing, uid)
	}
	return missing
}

// missing returns the UIDs of the prepared claims that the kubelet's checkpoint lacks; none if the checkpoint does not
// exist or cannot be read.
func (c *claims) missing() map[string]bool {
	missing := map[string]bool{}
	for _, r := range c.driver.Records() {
		missing[r.UID] = true
	}
	for _, claim := range c.gate.Claims() {
		missing[claim.UID] = true
	}
	if len(missing) == 0 {
		return missing
	}
	prepared, err := kubelet.PreparedClaims(c.node, c.kubeletDir)
	if err != nil || prepared == nil {
		return nil
	}
	for _, p := range prepared {
		delete(missing, p.UID)
	}
	return missing
}
