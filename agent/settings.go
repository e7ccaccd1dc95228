package agent

import (
	"context"
	"maps"
	"reflect"
	"time"

	"github.com/gpucdi/gpucdi/apiserver"
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
)

// watchConfig leaves word in changed when the config's file may have changed.
func (a *Agent) watchConfig(ctx context.Context, changed chan struct{}) {
	if a.cfg.ConfigFile == "" {
		return
	}
	err := config.Watch(ctx, a.cfg.ConfigFile, func() { replace(changed, struct{}{}) })
	if err != nil {
		a.log.Error("a change of the config is not seen any more: send SIGHUP after one", "err", err)
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
	for said := ""; ctx.Err() == nil; {
		err := client.WatchLabels(ctx, a.cfg.NodeName, func(now map[string]string) {
			said = ""
			replace(labels, now)
		})
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			a.log.Warn("sections of the config that hold by a label are as they were: may the service account watch nodes, as in deploy/?", "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(nodeRetry):
		}
	}
}

// settle reads the config for the first time. later gets the node's labels when
// they change.
func (n *node) settle(ctx context.Context, client *apiserver.Client, later chan map[string]string) error {
	file, err := config.Load(n.agent.cfg.ConfigFile)
	if err != nil {
		return err
	}
	if client != nil {
		n.followNode = func(ctx context.Context) error {
			n.agent.watchNode(ctx, client, later)
			return nil
		}
	}
	n.labels = n.agent.firstLabels(ctx, client, file)
	return n.adopt(file)
}

// relabel takes in the labels that the node has now.
func (n *node) relabel(labels map[string]string) bool {
	if maps.Equal(labels, n.labels) {
		return false
	}
	n.labels = labels
	return n.reload()
}

// reload makes what the file says for this node what holds, and returns whether
// that is something else than before. A file that is wrong changes nothing.
func (n *node) reload() bool {
	before := n.settings
	file, err := config.Load(n.agent.cfg.ConfigFile)
	if err == nil {
		err = n.adopt(file)
	}
	if err != nil {
		n.agent.view.refuse(err)
		n.log.Error("keeping the config as it was: mend the file", "err", err)
		n.agent.events.Record(apiserver.Event{Type: apiserver.Warning, Reason: gpuConfigRefused, Message: "the config of gpucdi is kept as it was: " + oneLine(err)})
		return false
	}
	if reflect.DeepEqual(before, n.settings) {
		return false
	}
	n.log.Info("the config of this node has changed")
	return true
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
	n.agent.view.config.Store(&status.Config{Path: n.agent.cfg.ConfigFile, Loaded: time.Now()})
	n.health.Quiet = settings.Health.QuietPeriod
	n.health.Policy = health.Policy{Ignore: settings.Health.XIDs.Ignore, Fatal: settings.Health.XIDs.Fatal}
	return nil
}
