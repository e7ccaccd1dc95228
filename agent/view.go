package agent

import (
	"cmp"
	"sync/atomic"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/status"
)

// view is what the agent's goroutines have last found out, for people to look
// at. Each leaves its own part, which nobody changes after; who looks waits for
// none of them.
type view struct {
	node      atomic.Pointer[status.Node] // by the loop, after each reconcile
	plugins   atomic.Pointer[[]*kubelet.Plugin]
	telemetry atomic.Pointer[map[string]gpu.Telemetry] // by UUID
	runtime   atomic.Pointer[status.Runtime]
	config    atomic.Pointer[status.Config] // by the loop, when it has read the file
	byLabels  atomic.Bool                   // by the loop: sections of the file select by label
	labels    atomic.Pointer[string]        // why they are not applied or out of date; empty: they are applied
	holders   holders

	predecessor atomic.Pointer[string] // which agent this one waits for; nil: none
}

func (v *view) init(cfg Config) {
	v.node.Store(&status.Node{
		Name:    cfg.NodeName,
		Version: cfg.Version,
		Driver:  status.Driver{Trouble: "not read yet"},
		Spec:    status.Spec{Path: cdi.AgentFile(cfg.CDIDir, cfg.Node).Path},
	})
	v.plugins.Store(&[]*kubelet.Plugin{})
	v.telemetry.Store(&map[string]gpu.Telemetry{})
	v.runtime.Store(&status.Runtime{Trouble: "not asked yet"})
	v.config.Store(&status.Config{Path: cfg.ConfigFile})
	v.labels.Store(new(string))
}

// refuse records why the config file is not in effect.
func (v *view) refuse(why string) {
	now := *v.config.Load()
	now.Trouble = why
	v.config.Store(&now)
}

// publish leaves the state of the loop in the view.
func (n *node) publish() {
	cfg := n.agent.cfg
	now := &status.Node{
		Name:    cfg.NodeName,
		Version: cfg.Version,
		Driver:  status.Driver{Driver: n.known.Driver, Trouble: trouble(n.driverErr)},
		Spec:    status.Spec{Path: n.agent.spec.Path, Devices: len(n.parts.GPUs), Trouble: trouble(n.specErr)},
	}
	if n.reading.Err == nil {
		now.Driver.Root = n.reading.Driver.String()
		now.Unreadable = n.reading.Inventory.Unreadable
	}
	for _, g := range n.inspected.GPUs {
		g.Links = nil // gpucdi list shows them
		now.GPUs = append(now.GPUs, n.gpuStatus(g))
	}
	var plugins []*kubelet.Plugin
	for _, r := range n.listed {
		plugins = append(plugins, n.plugins[r.Name])
		for _, d := range r.Devices {
			now.Devices = append(now.Devices, status.Device{ID: d.ID, Index: d.Index, Resource: r.Name, GPU: d.GPU, Replicas: d.Replicas, Fault: n.fault(d)})
		}
	}
	n.agent.view.node.Store(now)
	n.agent.view.plugins.Store(&plugins)
}

// fault is what people are told of the fault of a device.
func (n *node) fault(d allocator.Device) *status.Fault {
	if d.Fault == "" {
		return nil
	}
	h := n.verdict(d)
	f := &status.Fault{Category: n.category(d), Reason: d.Fault, Since: d.Since}
	if d.Awaits != "" {
		f.Reason += "; waits for " + d.Awaits
	}
	if h.Reason == d.Fault {
		f.Heals, f.Since = h.Heals, h.Since
	}
	return f
}

// The categories of faults besides those of health; docs/health.md tells them.
const (
	faultUnreadable = "unreadable"  // the driver does not tell what it is
	faultDriver     = "driver"      // the driver is not there, or not whole
	faultSpec       = "spec"        // the CDI spec cannot be written, or cannot be used
	faultDeviceNode = "device_node" // its device node is missing, or another's
	faultConfig     = "config"      // the GPUs are not as mig.strategy or resources would have them
	faultWaits      = "waits"       // a pod may hold what it was before: it is cut or shared anew
	faultLeft       = "left"        // it is no longer offered, but a pod may hold it
)

// category says in one word, of few, where a fault comes from.
func (n *node) category(d allocator.Device) string {
	switch h := n.verdict(d); {
	case n.unconfigured != nil:
		return faultConfig
	case d.Fault == h.Reason:
		return h.Category
	case d.Left():
		return faultLeft
	case d.State == allocator.StateWaiting:
		return faultWaits
	case n.inspected.Fault(d.ID) == "":
		return faultConfig
	case d.Fault == cmp.Or(n.known.Fault(d.ID), n.known.Fault(d.GPU)):
		return faultUnreadable
	case n.driverErr != nil:
		return faultDriver
	case d.Fault == trouble(n.specErr):
		return faultSpec
	}
	return faultDeviceNode
}

// trouble is an error as people read it; empty when there is none.
func trouble(err error) string {
	if err == nil {
		return ""
	}
	return oneLine(err)
}
