package agent

import (
	"context"
	"maps"
	"reflect"
	"time"

	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/gpu/health"
)

// labelsTimeout is how long the agent waits at its start for the labels of its
// node: resources that come and go right after disturb pods.
const labelsTimeout = 5 * time.Second

// settings is the config that is in effect, and how that relates to the file.
type settings struct {
	config.Config           // what the file says for a node with these labels
	loaded        time.Time // zero: none is in effect
	byLabels      bool      // sections of the file select by label
	refused       error     // why the file is not in effect; nil: it is

	// fault is that of all devices if no config is in effect: it was invalid at the start, and
	// there was no last known good one. Only what pods may hold is listed then.
	fault gpu.Fault
}

// refusal is what happens to the agent by an invalid config.
func (s *settings) refusal() string {
	if s.fault.None() {
		return "invalid config, keeping last known good"
	}
	return "invalid config and no last known good, advertising nothing"
}

// trouble describes why the file is not in effect; empty if it is.
func (s *settings) trouble() string {
	if s.refused == nil {
		return ""
	}
	return s.refusal() + ": " + gpu.OneLine(s.refused)
}

// configure reads the config for the first time. An invalid one does not end the agent: the
// last known good one that an earlier agent saved takes its place, or none at all. labels
// delivers those of the Node.
func (l *loop) configure(ctx context.Context, labels <-chan update[map[string]string]) {
	use := func(file *config.File, err error) (*config.File, error) {
		if err != nil {
			return nil, err
		}
		l.awaitLabels(ctx, file, labels)
		return file, l.adopt(file)
	}
	file, invalid := use(config.Load(l.cfg.ConfigFile))
	if invalid == nil {
		l.state.saveConfig(file)
		return
	}
	if _, err := use(l.state.lastGoodConfig()); err != nil {
		l.config.fault = gpu.Fault{Code: gpu.FaultConfig, Message: "no valid config, and no last known good one: " + gpu.OneLine(invalid), Since: time.Now()}
		l.config.Config = config.Default() // for the intervals
		l.health.Quiet = l.config.Health.QuietPeriod
	}
	l.config.refused = invalid
}

// awaitLabels waits for the first of the node's labels if the config selects by them. Later ones are a
// trigger.
func (l *loop) awaitLabels(ctx context.Context, file *config.File, labels <-chan update[map[string]string]) {
	if l.followLabels == nil || !file.ByLabels() || l.labels.err == nil {
		return
	}
	l.followLabels()
	select {
	case l.labels = <-labels:
	case <-time.After(labelsTimeout):
	case <-ctx.Done():
	}
}

// relabel applies the labels that the node has now.
func (l *loop) relabel(ctx context.Context, u update[map[string]string]) {
	l.labels.err = u.err
	if u.err != nil || maps.Equal(u.value, l.labels.value) {
		return
	}
	l.labels.value = u.value
	l.reload(ctx)
}

// reload reads the config again, and reconciles if that changes it. The driver is read again
// only if the change concerns it: XIDs that come meanwhile are lost.
func (l *loop) reload(ctx context.Context) {
	before := l.driverConfig()
	if !l.loadConfig() {
		return
	}
	if now := l.driverConfig(); now != before {
		replace(l.reread, now)
	}
	l.reconcile(ctx)
}

// reloadAll reads the config and the driver again.
func (l *loop) reloadAll(ctx context.Context) {
	l.loadConfig()
	l.log.Info("the driver is read again")
	replace(l.reread, l.driverConfig())
	l.reconcile(ctx)
}

// driverConfig is how the driver is read with the config in effect.
func (l *loop) driverConfig() driver.Config {
	return driver.Config{
		Node:       l.cfg.Node,
		DriverRoot: l.cfg.DriverRoot,
		Library:    l.cfg.Library,
		Interval:   l.config.Health.ProbeInterval,
		CallWithin: l.config.Health.CallTimeout,
		Worker:     l.cfg.Worker,
	}
}

// loadConfig applies what the file says for this node, and reports whether that differs from
// before. An invalid file changes nothing.
func (l *loop) loadConfig() bool {
	before := l.config
	file, err := config.Load(l.cfg.ConfigFile)
	if err == nil {
		err = l.adopt(file)
	}
	if err != nil {
		l.config.refused = err
		return false
	}
	l.state.saveConfig(file)
	if before.fault.None() && reflect.DeepEqual(before.Config, l.config.Config) {
		return false
	}
	l.log.Info("config changed")
	return true
}

func (l *loop) adopt(file *config.File) error {
	self := config.Node{Name: l.cfg.NodeName, Labels: l.labels.value}
	effective, err := file.For(self)
	if err != nil {
		return err
	}
	if name := file.Lacks(self); name != "" && file.ByLabels() {
		l.log.Warn("the config has no section of the name that the node's label says", "label", config.SectionLabel, "section", name)
	}
	if l.followLabels != nil && file.ByLabels() {
		l.followLabels()
	}
	l.config = settings{Config: effective, loaded: time.Now(), byLabels: file.ByLabels()}
	l.health.Quiet = effective.Health.QuietPeriod
	l.health.Policy = health.Policy{Ignore: effective.Health.XIDs.Ignore, Fatal: effective.Health.XIDs.Fatal}
	return nil
}
