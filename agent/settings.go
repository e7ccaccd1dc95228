package agent

import (
	"context"
	"reflect"

	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/internal/config"
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

// settings reads what the config says for this node.
func (a *Agent) settings() (config.Config, error) {
	file, err := config.Load(a.cfg.ConfigFile)
	if err != nil {
		return config.Config{}, err
	}
	return file.For(config.Node{Name: a.cfg.NodeName})
}

// reload reads the config again, and returns whether it says something else
// than before. One that is wrong changes nothing.
func (n *node) reload() bool {
	settings, err := n.agent.settings()
	if err != nil {
		n.log.Error("keeping the config as it was: mend the file", "err", err)
		return false
	}
	if reflect.DeepEqual(settings, n.settings) {
		return false
	}
	n.log.Info("the config of this node has changed")
	n.configure(settings)
	return true
}

func (n *node) configure(settings config.Config) {
	n.settings = settings
	n.health.Quiet = settings.Health.QuietPeriod
	n.health.Policy = health.Policy{Ignore: settings.Health.XIDs.Ignore, Fatal: settings.Health.XIDs.Fatal}
}
