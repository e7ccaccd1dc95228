package agent

import (
	"context"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/kubelet"
)

// heldTimeout is what the kubelet may take to say who holds what.
const heldTimeout = 5 * time.Second

// releaseAfter is how long a GPU must be gone until it may be forgotten. The
// kubelet may have chosen it for a pod just before, and panics when a device
// that it has chosen is no longer listed.
const releaseAfter = 10 * time.Second

// watchHeld tells which GPUs pods hold whenever it is asked to, until ctx ends.
func (a *Agent) watchHeld(ctx context.Context, ask <-chan struct{}, held chan<- []kubelet.Holder) {
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ask:
		}
		now, err := a.held(ctx)
		if err != nil {
			if ctx.Err() == nil && err.Error() != said {
				said = err.Error()
				a.log.Warn("a GPU that is gone stays listed until the kubelet says that no pod holds it", "err", err)
			}
			continue
		}
		select {
		case held <- now:
		case <-ctx.Done():
			return
		}
	}
}

func (a *Agent) held(ctx context.Context) ([]kubelet.Holder, error) {
	ctx, cancel := context.WithTimeout(ctx, heldTimeout)
	defer cancel()
	return kubelet.Held(ctx, a.cfg.KubeletDir)
}

// gone are the GPUs that left the node a while ago, by UUID. They stay listed
// as long as a pod may hold them.
func (n *node) gone(at time.Time) map[string]bool {
	gone := map[string]bool{}
	for _, g := range n.known.GPUs {
		if g.Fault == gpu.FaultGone && at.Sub(n.health.Health(g.UUID).Since) > releaseAfter {
			gone[g.UUID] = true
		}
	}
	return gone
}

// release forgets the GPUs that are gone and that no pod holds. It returns
// whether there was one.
func (n *node) release(held []kubelet.Holder, at time.Time) bool {
	free := n.gone(at)
	for _, h := range held {
		if h.Resource == allocator.GPUResource {
			delete(free, h.Device)
		}
	}
	for uuid := range free {
		delete(n.away, uuid)
		n.health.Forget(uuid)
		n.log.Info("GPU is gone and no pod holds it: no longer listed", "gpu", uuid)
	}
	n.known = n.known.Without(free)
	return len(free) > 0
}
