package agent

import (
	"context"
	"maps"
	"reflect"
	"time"

	"github.com/gpucdi/gpucdi/apiserver"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/internal/config"
	"github.com/gpucdi/gpucdi/status"
)

const (
	// nodeWithin is how long the agent waits at its start for the labels of its
	// node: resources that come and go right after disturb pods.
	nodeWithin = 5 * time.Second
	// nodeRetry is the time between the end of one watch of the node and the
	// next.
	nodeRetry = 10 * time.Second
	// configRetry is the time between two tries to watch the config.
	configRetry = time.Second
)

// watchConfig triggers a reload when the config file may have changed. A watch that
// fails is retried until ctx ends. At its second failure the config is read all the
// same, so that a missing file is reported; the first may come from a directory that is
// just being replaced.
func (a *Agent) watchConfig(ctx context.Context, changed chan struct{}) {
	if a.cfg.ConfigFile == "" {
		return
	}
	for failures := 0; ctx.Err() == nil; {
		err := config.Watch(ctx, a.cfg.ConfigFile, func() {
			failures = 0
			replace(changed, struct{}{})
		})
		if err == nil {
			return
		}
		switch failures++; failures {
		case 1:
			a.log.Warn("config is not watched, will retry", "err", err)
		case 2:
			replace(changed, struct{}{})
		}
		select {
		case <-ctx.Done():
		case <-time.After(configRetry):
		}
	}
}

// firstLabels returns the node's labels if the config asks for some, as far as
// they can be had in time; watchNode brings them later.
func (a *Agent) firstLabels(ctx context.Context, client *apiserver.Client, file *config.File) (labels map[string]string) {
	if client == nil || !file.ByLabels() {
		return nil
	}
	ctx, enough := context.WithTimeout(ctx, nodeWithin)
	defer enough()
	_ = client.WatchLabels(ctx, a.cfg.NodeName, func(now map[string]string) { // watchNode says why it fails
		labels = now
		enough()
	})
	return labels
}

// watchNode delivers the node's labels, at first and whenever they have
// changed, until ctx ends.
func (a *Agent) watchNode(ctx context.Context, client *apiserver.Client, labels chan map[string]string) {
	received := false
	for said := ""; ctx.Err() == nil; {
		err := client.WatchLabels(ctx, a.cfg.NodeName, func(now map[string]string) {
			said, received = "", true
			a.view.labelsKnown()
			replace(labels, now)
		})
		if err != nil && ctx.Err() == nil {
			if received {
				a.view.labelsStale(err)
			} else {
				a.view.labelsUnknown(err)
			}
			if err.Error() != said {
				said = err.Error()
				a.log.Warn("node labels not received, sections that select by label stay unchanged; check the role in deploy/", "err", err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(nodeRetry):
		}
	}
}

// settle reads the config for the first time. An invalid one does not end the agent: the
// last known good one that an earlier agent saved takes its place, or none at all. later gets
// the node's labels when they change.
func (n *node) settle(ctx context.Context, client *apiserver.Client, later chan map[string]string) {
	if client != nil {
		n.followNode = func(ctx context.Context) error {
			n.agent.watchNode(ctx, client, later)
			return nil
		}
	}
	use := func(load func() (*config.File, error)) (*config.File, error) {
		file, err := load()
		if err != nil {
			return nil, err
		}
		n.labels = n.agent.firstLabels(ctx, client, file)
		return file, n.adopt(file)
	}
	file, invalid := use(func() (*config.File, error) { return config.Load(n.agent.cfg.ConfigFile) })
	if invalid == nil {
		n.state.saveConfig(file)
		return
	}
	if _, err := use(n.state.lastGoodConfig); err != nil {
		n.unconfigured = gpu.Fault{Code: gpu.FaultConfig, Message: "no valid config, and no last known good one: " + oneLine(invalid), Since: time.Now()}
		n.settings = config.Default() // for the intervals
		n.health.Quiet = n.settings.Health.QuietPeriod
	}
	n.refuse(invalid)
}

// relabel takes in the labels that the node has now.
func (n *node) relabel(labels map[string]string) bool {
	if maps.Equal(labels, n.labels) {
		return false
	}
	n.labels = labels
	return n.reload()
}

// reload applies what the file says for this node, and reports whether that differs from
// before. An invalid file changes nothing.
func (n *node) reload() bool {
	before, unconfigured := n.settings, !n.unconfigured.None()
	file, err := config.Load(n.agent.cfg.ConfigFile)
	if err == nil {
		err = n.adopt(file)
	}
	if err != nil {
		n.refuse(err)
		return false
	}
	n.state.saveConfig(file)
	n.unconfigured = gpu.Fault{}
	if !unconfigured && reflect.DeepEqual(before, n.settings) {
		return false
	}
	n.log.Info("config changed")
	return true
}

// refuse reports everywhere that the config file is not in effect.
func (n *node) refuse(invalid error) {
	const kept, none = "invalid config, keeping last known good", "invalid config and no last known good, advertising nothing"
	message := kept
	if !n.unconfigured.None() {
		message = none
	}
	n.agent.view.refuse(message + ": " + oneLine(invalid))
	n.log.Error(message, "path", n.agent.cfg.ConfigFile, "err", invalid)
	n.agent.events.Record(apiserver.Event{Type: apiserver.Warning, Reason: gpuConfigRefused, Message: message + ": " + oneLine(invalid)})
}

func (n *node) adopt(file *config.File) error {
	self := config.Node{Name: n.agent.cfg.NodeName, Labels: n.labels}
	settings, err := file.For(self)
	if err != nil {
		return err
	}
	if name := file.Lacks(self); name != "" && file.ByLabels() {
		n.log.Warn("the config has no section of the name that the node's label says", "label", config.SectionLabel, "section", name)
	}
	if n.followNode != nil && file.ByLabels() {
		n.start(n.followNode)
		n.followNode = nil
	}
	n.settings = settings
	n.agent.view.byLabels.Store(file.ByLabels())
	n.agent.view.config.Store(&status.Config{Path: n.agent.cfg.ConfigFile, Loaded: time.Now()})
	n.health.Quiet = settings.Health.QuietPeriod
	n.health.Policy = health.Policy{Ignore: settings.Health.XIDs.Ignore, Fatal: settings.Health.XIDs.Fatal}
	return nil
}
