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
	// labelsInterval is how often unchanged labels are applied again: they may have been removed, or the Node
	// recreated. It also bounds the retry backoff.
	labelsInterval = 5 * time.Minute
	// labelsRetry is the initial retry backoff.
	labelsRetry = time.Second
)

// machineFile has the product name of the machine, from DMI.
const machineFile = "/sys/class/dmi/id/product_name"

// desiredLabels are the labels of the node and where they are published.
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

// desiredLabels returns the labels that the node should have; false: keep the current ones. A driver failure keeps
// them, because the GPUs are the same.
func (s *snapshot) desiredLabels(node host.Root) (desiredLabels, bool) {
	if s.driver == nil || !s.config.fault.None() || s.driver.Err != nil && !noDriver(s.driver.Err) {
		return desiredLabels{}, false
	}
	l := desiredLabels{place: s.config.Labels.Place}
	if s.driver.Err == nil {
		machine, _ := node.ReadFile(machineFile) // missing on platforms without DMI
		l.labels = labels.Of(s.plan.deviceFaults, s.config.MIG.Strategy, s.config.Resources, string(machine))
	}
	return l, true
}

// syncLabels reconciles the node's labels with the latest snapshot until ctx ends. It then leaves them in place,
// because the next agent finds the same GPUs.
func (a *Agent) syncLabels(ctx context.Context, client *cluster.Client) {
	var want desiredLabels
	var again <-chan time.Time // nil until labels are wanted
	retry, logged := labelsRetry, ""
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-a.relabel:
			now, known := s.desiredLabels(a.cfg.Node)
			if !known || reflect.DeepEqual(now, want) {
				continue
			}
			want = now
		case <-again:
		}
		err := a.setLabels(ctx, client, want)
		if err == nil {
			again, retry, logged = time.After(labelsInterval), labelsRetry, ""
			continue
		}
		if ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			a.log.Warn("node labels not updated, will retry", "err", gpu.OneLine(err),
				"remedy", "allow the service account to patch nodes, as the role in deploy/ does")
		}
		again, retry = time.After(retry), min(2*retry, labelsInterval)
	}
}

// setLabels publishes the labels at their place, and removes them from the others.
func (a *Agent) setLabels(ctx context.Context, client *cluster.Client, want desiredLabels) error {
	var err error
	if client != nil {
		err = client.ApplyLabels(ctx, a.cfg.NodeName, want.at(config.LabelNode))
		if want.place != config.LabelNode && cluster.Refused(err) {
			err = nil // without this permission no labels can exist
		}
	}
	return errors.Join(err, a.writeLabels(want.at(config.LabelNFD)))
}

func (a *Agent) writeLabels(now map[string]string) error {
	path := filepath.Join(a.cfg.NFDDir, "gpucdi")
	if len(now) > 0 {
		return host.WriteFile(path, labels.File(now), 0o644, func(string) error { return nil })
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
