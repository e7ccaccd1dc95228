package agent

import (
	"context"
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/kubelet"
)

// heldTimeout bounds the kubelet's answer to who holds devices, and its write of a checkpoint.
const heldTimeout = 5 * time.Second

// releaseAfter is how long ago a device must have left its resource until it
// may be forgotten. The kubelet may have chosen it for a pod just before, and
// panics when a device that it has chosen is no longer listed.
const releaseAfter = 10 * time.Second

// listing is a device, or a replica of one, under one of its resources.
type listing struct{ resource, device string }

// waiting is a device that left its resource and waits until nobody holds it.
type waiting struct {
	listing
	plugin *kubelet.Plugin
}

// watchHeld reports which devices containers hold whenever it is asked to, until ctx ends.
// ask delivers the devices that wait to be released.
func (a *Agent) watchHeld(ctx context.Context, ask <-chan []waiting, held chan<- []kubelet.Holder) {
	said := ""
	for {
		var devices []waiting
		select {
		case <-ctx.Done():
			return
		case devices = <-ask:
		}
		now, err := a.held(ctx, devices)
		if err != nil {
			if ctx.Err() == nil && err.Error() != said {
				said = err.Error()
				a.log.Warn("device holders unknown, devices that left their resource stay listed", "err", err)
			}
			continue
		}
		said = ""
		select {
		case held <- now:
		case <-ctx.Done():
			return
		}
	}
}

// held returns who holds devices, by the pod resources and by the kubelet's checkpoint. The
// pod resources omit init containers; the checkpoint has them, but names the devices of ended
// pods until it is written again. So the order matters: the question for the pod resources
// makes the kubelet drop ended pods, and a list sent again makes it write the checkpoint
// without them. That write costs the kubelet an fsync, so it is caused only for devices that
// may be free.
func (a *Agent) held(ctx context.Context, devices []waiting) ([]kubelet.Holder, error) {
	ctx, cancel := context.WithTimeout(ctx, heldTimeout)
	defer cancel()
	listed, err := kubelet.Held(ctx, a.podResources())
	if err != nil {
		return nil, err
	}
	checkpoint, err := kubelet.ReadCheckpoint(a.devicePluginDir())
	if err != nil {
		return nil, err
	}
	if plugins := mayBeFree(devices, listed); len(plugins) > 0 {
		for _, plugin := range plugins {
			plugin.Resend()
		}
		if checkpoint, err = checkpoint.After(ctx, a.devicePluginDir()); err != nil {
			return nil, err
		}
	}
	return append(listed, checkpoint.Holders...), nil
}

// mayBeFree returns the plugins of those devices that no holder has.
func mayBeFree(devices []waiting, holders []kubelet.Holder) (plugins []*kubelet.Plugin) {
	for _, d := range devices {
		held := slices.ContainsFunc(holders, func(h kubelet.Holder) bool { return d.listing == listing{h.Resource, h.Device} })
		if !held && !slices.Contains(plugins, d.plugin) {
			plugins = append(plugins, d.plugin)
		}
	}
	return plugins
}

// noteLeft keeps since when each listed device that has left its resource has.
func (n *node) noteLeft(at time.Time) {
	left := map[listing]time.Time{}
	for _, r := range n.listed {
		for _, d := range r.Devices {
			if !d.Left {
				continue
			}
			for _, id := range d.IDs() {
				l := listing{r.Name, id}
				left[l] = at
				if since, known := n.left[l]; known {
					left[l] = since
				}
			}
		}
	}
	n.left = left
}

// overdue are the devices that left their resource a while ago. They stay listed
// as long as a pod may hold them.
func (n *node) overdue(at time.Time) []listing {
	var overdue []listing
	for l, since := range n.left {
		if at.Sub(since) > releaseAfter {
			overdue = append(overdue, l)
		}
	}
	return overdue
}

// waiting returns the devices that left their resource a while ago.
func (n *node) waiting(at time.Time) (devices []waiting) {
	for _, l := range n.overdue(at) {
		devices = append(devices, waiting{l, n.plugin(l.resource)})
	}
	return devices
}

// hearHeld takes in which devices pods hold, and returns whether that changes
// what is to be listed.
func (n *node) hearHeld(held []kubelet.Holder, at time.Time) bool {
	inherited := n.inherit(held)
	return n.release(held, at) || inherited
}

// inherit lists what pods hold since an earlier agent offered it, and nothing that
// was read since this one started. It returns whether there was such a device.
func (n *node) inherit(held []kubelet.Holder) bool {
	if n.reading == nil {
		return false // too early to tell; the next answer comes
	}
	n.heldKnown = true
	before := n.listed
	for _, h := range held {
		n.listed = allocator.Adopt(n.listed, h.Resource, h.Device, cdi.AgentKind)
	}
	return len(allocator.Changes(before, n.listed)) > 0
}

// release frees the overdue devices that no pod holds. It returns whether there
// was one.
func (n *node) release(held []kubelet.Holder, at time.Time) bool {
	for _, l := range n.overdue(at) {
		if !slices.ContainsFunc(held, func(h kubelet.Holder) bool { return l == listing{h.Resource, h.Device} }) {
			n.free[l] = true
		}
	}
	for _, r := range n.listed {
		for _, d := range r.Devices {
			if !n.anyMayBeHeld(r.Name, d) {
				n.log.Info("device has left and no pod holds it: no longer listed", "device", d.ID, "resource", r.Name)
			}
		}
	}
	return len(n.free) > 0
}

func (n *node) mayBeHeld(resource, device string) bool { return !n.free[listing{resource, device}] }

// anyMayBeHeld says whether a pod may hold a device of a resource, or a replica of it.
func (n *node) anyMayBeHeld(resource string, d allocator.Device) bool {
	return slices.ContainsFunc(d.IDs(), func(id string) bool { return n.mayBeHeld(resource, id) })
}

// forgetGone drops what is gone and need not be listed any more.
func (n *node) forgetGone() {
	n.known = n.known.Forget(func(uuid string) bool {
		return slices.ContainsFunc(n.listed, func(r *allocator.Resource) bool {
			return slices.ContainsFunc(r.Devices, func(d allocator.Device) bool { return d.ID == uuid && n.anyMayBeHeld(r.Name, d) })
		})
	})
	for uuid := range n.away {
		if _, known := n.known.Find(uuid); !known {
			delete(n.away, uuid)
			n.health.Forget(uuid)
		}
	}
}
