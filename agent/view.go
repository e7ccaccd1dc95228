package agent

import (
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
			if d.State != allocator.StateReleased { // only the kubelet needs it
				now.Devices = append(now.Devices, deviceStatus(r.Name, d))
			}
		}
	}
	n.agent.view.node.Store(now)
	n.agent.view.plugins.Store(&plugins)
}

// trouble is an error as people read it; empty when there is none.
func trouble(err error) string {
	if err == nil {
		return ""
	}
	return oneLine(err)
}
