package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/labels"
)

const (
	// labelsInterval is how often an unchanged feature file is written again, since it may have been removed. It also
	// bounds the retry backoff.
	labelsInterval = 5 * time.Minute
	// labelsRetry is the initial retry backoff.
	labelsRetry = time.Second
)

// machineFiles contain the product name of the machine: from DMI, or from the device tree of machines without DMI.
var machineFiles = []string{"/sys/class/dmi/id/product_name", "/sys/firmware/devicetree/base/model"}

// machine returns the product name of the machine; empty if unknown.
func machine(node host.Root) string {
	for _, file := range machineFiles {
		if name, err := node.ReadFile(file); err == nil {
			return string(name)
		}
	}
	return ""
}

// desiredLabels are the labels that the node should have, and where to publish them.
type desiredLabels struct {
	labels map[string]string
	place  config.LabelPlace
}

// at returns the labels for a place.
func (l desiredLabels) at(place config.LabelPlace) map[string]string {
	if l.place != place {
		return nil
	}
	return l.labels
}

// desiredLabels returns the labels that the node should have. It returns false to keep the current ones: before the
// first report of the driver worker, while no config is in effect, and after a driver failure, which does not change
// the GPUs. A node without a driver has no labels.
func (s *snapshot) desiredLabels(node host.Root) (desiredLabels, bool) {
	if s.driver == nil || !s.config.fault.None() || s.driver.Err != nil && !noDriver(s.driver.Err) {
		return desiredLabels{}, false
	}
	l := desiredLabels{place: s.config.Labels.Place}
	if s.driver.Err == nil {
		l.labels = labels.Of(s.plan.deviceFaults, s.config.Policy(), machine(node))
	}
	return l, true
}

// syncLabels publishes the labels of the latest snapshot at their place, and removes them from the other place, until
// ctx ends. It then leaves them in place, because the next agent finds the same GPUs. nodeLabels is nil without API
// server access.
func (a *Agent) syncLabels(ctx context.Context, nodeLabels *cluster.NodeLabels) {
	var want desiredLabels
	var again <-chan time.Time // nil until the desired labels are known
	retry, logged := labelsRetry, ""
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-a.labelsChanged:
			now, known := s.desiredLabels(a.cfg.Node)
			if !known || reflect.DeepEqual(now, want) {
				continue
			}
			want = now
			if nodeLabels != nil {
				nodeLabels.Want(want.at(config.LabelNode))
			}
		case <-again:
		}
		err := a.writeLabels(want.at(config.LabelNFD))
		if err == nil {
			again, retry, logged = time.After(labelsInterval), labelsRetry, ""
			continue
		}
		if err.Error() != logged {
			logged = err.Error()
			a.log.Warn("feature file not updated, will retry", "err", gpu.OneLine(err))
		}
		again, retry = time.After(retry), min(2*retry, labelsInterval)
	}
}

// writeLabels writes the file for Node Feature Discovery, or removes it.
func (a *Agent) writeLabels(now map[string]string) error {
	if a.cfg.NFDDir == "" { // otherwise the path would be relative
		if len(now) > 0 {
			return errors.New("labels.place is nfd, but its directory is disabled; set --nfd-dir")
		}
		return nil
	}
	path := filepath.Join(a.cfg.NFDDir, "gpucdi")
	if len(now) > 0 {
		return host.WriteFile(path, labels.File(now), 0o644, func(string) error { return nil })
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
