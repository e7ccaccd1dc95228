package agent

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"time"

	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/gpu/health"
)

// labelsTimeout bounds the wait for the node's labels at start. Without the wait, resources may change right after they
// are advertised.
const labelsTimeout = 5 * time.Second

// settings is the config in effect and its relation to the file.
type settings struct {
	config.Config           // effective for this node with its latest labels
	loaded        time.Time // zero: no config is in effect
	byLabels      bool      // the file has sections that select by label
	invalid       error     // why the file is not in effect; nil: it is

	// fault is the fault of all devices while no config is in effect: the file was invalid at start, and there
	// was no last known good one. Only devices that pods may hold are advertised then.
	fault gpu.Fault
}

// consequence describes how the agent proceeds with an invalid config.
func (s *settings) consequence() string {
	if s.fault.None() {
		return "invalid config, keeping last known good"
	}
	return "invalid config and no last known good, all devices unhealthy"
}

// problem describes why the file is not in effect; empty if it is.
func (s *settings) problem() string {
	if s.invalid == nil {
		return ""
	}
	return s.consequence() + ": " + gpu.OneLine(s.invalid)
}

// configure loads the config at start. If the file is invalid, it uses the last known good config that an earlier agent
// saved, if there is one. labels delivers the labels of the Node.
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
		l.config.fault = gpu.Fault{Code: gpu.FaultConfig, Message: "invalid config and no last known good: " + gpu.OneLine(invalid), Since: time.Now()}
		l.config.Config = config.Default() // for the intervals
		l.health.Quiet = l.config.Health.QuietPeriod
	}
	l.config.invalid = invalid
}

// awaitLabels waits for the node's labels if the config selects by label and they have not been received. Labels that
// are received later trigger a step.
func (l *loop) awaitLabels(ctx context.Context, file *config.File, labels <-chan update[map[string]string]) {
	if l.followLabels == nil || !file.SelectsByLabel() || l.labels.err == nil {
		return
	}
	l.followLabels()
	select {
	case l.labels = <-labels:
	case <-time.After(labelsTimeout):
	case <-ctx.Done():
	}
}

// relabel applies received labels of the node to the config.
func (l *loop) relabel(ctx context.Context, u update[map[string]string]) {
	l.labels.err = u.err
	if u.err != nil || maps.Equal(u.value, l.labels.value) {
		return
	}
	l.labels.value = u.value
	l.reload(ctx)
}

// reload reloads the config and reconciles if it changed. It rereads the driver only if the driver config changed,
// because XIDs are lost during a reread.
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

// reloadAll reloads the config and rereads the driver.
func (l *loop) reloadAll(ctx context.Context) {
	l.loadConfig()
	l.log.Info("reload requested")
	replace(l.reread, l.driverConfig())
	l.reconcile(ctx)
}

// driverConfig returns the driver worker's config under the config in effect.
func (l *loop) driverConfig() driver.Config {
	return driver.Config{
		Node:        l.cfg.Node,
		DriverRoot:  l.cfg.DriverRoot,
		Library:     l.cfg.Library,
		Interval:    l.config.Health.ProbeInterval,
		CallTimeout: l.config.Health.CallTimeout,
		Worker:      l.cfg.Worker,
		LimitMemory: l.limitsMemory(""),
	}
}

// limitsMemory reports whether the config limits the GPU memory of pods that request a resource, or did so when their
// devices were granted. If resource is empty, it considers all resources and ResourceClaims.
func (l *loop) limitsMemory(resource string) bool {
	return l.config.Policy().LimitsMemory(resource) || l.ledger.LimitsMemory(resource)
}

// loadConfig applies the config file, and reports whether the effective config changed. An invalid file changes
// nothing.
func (l *loop) loadConfig() bool {
	before := l.config
	file, err := config.Load(l.cfg.ConfigFile)
	if err == nil {
		err = l.adopt(file)
	}
	if err != nil {
		l.config.invalid = err
		return false
	}
	l.state.saveConfig(file)
	if before.fault.None() && reflect.DeepEqual(before.Config, l.config.Config) {
		return false
	}
	l.log.Info("config changed")
	return true
}

// adopt puts the config of a file for this node into effect.
func (l *loop) adopt(file *config.File) error {
	node := config.Node{Name: l.cfg.NodeName, Labels: l.labels.value}
	effective, err := file.For(node)
	if err != nil {
		return err
	}
	if l.claims == nil && effective.Policy().UsesDRA() {
		if l.cfg.DRADriver == "" {
			return errNoDRADriver
		}
		return errNoAPIServer
	}
	if l.followLabels == nil && effective.Policy().LimitsCompute() {
		return errors.New("limits: memory+compute requires API server access, to check that pods do not run as root; run the agent in a pod with a service account, and set --node-name")
	}
	if name := file.MissingSection(node); name != "" && file.SelectsByLabel() {
		l.log.Warn("config section named by node label not found", "label", config.SectionLabel, "section", name)
	}
	if l.followLabels != nil && file.SelectsByLabel() {
		l.followLabels()
	}
	l.config = settings{Config: effective, loaded: time.Now(), byLabels: file.SelectsByLabel()}
	l.health.Quiet = effective.Health.QuietPeriod
	l.health.Policy = health.Policy{Ignore: effective.Health.XIDs.Ignore, Fatal: effective.Health.XIDs.Fatal}
	return nil
}
