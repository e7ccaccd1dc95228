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
	// labelsInterval is how often labels are set again that should be there
	// already: somebody may have removed one, or made the Node anew.
	labelsInterval = 5 * time.Minute
	// labelsRetry is how soon it is tried again for the first time after it
	// failed; then ever later.
	labelsRetry = time.Second
)

// machineFile is where the firmware's name of the machine stands.
const machineFile = "/sys/class/dmi/id/product_name"

// labelling is which labels the node is to have, and where.
type labelling struct {
	labels map[string]string
	place  config.LabelPlace
}

// at returns the labels that belong to a place.
func (l labelling) at(place config.LabelPlace) map[string]string {
	if l.place != place {
		return nil
	}
	return l.labels
}

// labelling returns how the node is to be labelled; false: as it is. A driver that fails leaves
// the labels: the GPUs are the same.
func (s *snapshot) labelling(node host.Root) (labelling, bool) {
	if s.reading == nil || !s.config.fault.None() || s.reading.Err != nil && !noDriver(s.reading.Err) {
		return labelling{}, false
	}
	l := labelling{place: s.config.Labels.Place}
	if s.reading.Err == nil {
		machine, _ := node.ReadFile(machineFile) // not every platform has it
		l.labels = labels.Of(s.plan.own, s.config.MIG.Strategy, s.config.Resources, string(machine))
	}
	return l, true
}

// keepLabels keeps the node's labels as the latest snapshot requires, until ctx ends.
// They stay then: the next agent finds the same GPUs.
func (a *Agent) keepLabels(ctx context.Context, client *cluster.Client) {
	var want labelling
	var again <-chan time.Time // nil until there is something to keep
	retry, logged := labelsRetry, ""
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-a.relabel:
			now, known := s.labelling(a.cfg.Node)
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
			a.log.Warn("the node's labels are not as they should be: may the service account patch nodes, as in deploy/?", "err", gpu.OneLine(err))
		}
		again, retry = time.After(retry), min(2*retry, labelsInterval)
	}
}

// setLabels puts the labels where they belong, and removes them elsewhere.
func (a *Agent) setLabels(ctx context.Context, client *cluster.Client, want labelling) error {
	var err error
	if client != nil {
		err = client.ApplyLabels(ctx, a.cfg.NodeName, want.at(config.LabelNode))
		if want.place != config.LabelNode && cluster.Refused(err) {
			err = nil // who may not label a node has not done so
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
