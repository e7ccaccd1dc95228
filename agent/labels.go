package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/gpucdi/gpucdi/apiserver"
	"github.com/gpucdi/gpucdi/internal/config"
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

// label passes the labels that the node should have to keepLabels, if they have
// changed. A driver that fails leaves them: the GPUs are the same.
func (n *node) label() {
	var missing *host.NoDriverError
	if !n.unconfigured.None() || n.reading.Err != nil && !errors.As(n.reading.Err, &missing) {
		return
	}
	now := labelling{place: n.settings.Labels.Place}
	if n.reading.Err == nil {
		machine, _ := n.agent.cfg.Node.ReadFile(machineFile) // not every platform has it
		now.labels = labels.Of(n.withOwnFaults(n.parts), n.settings.MIG.Strategy, n.settings.Resources, string(machine))
	}
	if !reflect.DeepEqual(now, n.labelled) {
		n.labelled = now
		replace(n.agent.labels, now)
	}
}

// keepLabels keeps the node's labels as the loop wants them, until ctx ends.
// They stay then: the next agent finds the same GPUs.
func (a *Agent) keepLabels(ctx context.Context, client *apiserver.Client) {
	var want labelling
	var again <-chan time.Time // nil until there is something to keep
	retry, said := labelsRetry, ""
	for {
		select {
		case <-ctx.Done():
			return
		case want = <-a.labels:
		case <-again:
		}
		err := a.setLabels(ctx, client, want)
		if err == nil {
			again, retry, said = time.After(labelsInterval), labelsRetry, ""
			continue
		}
		if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			a.log.Warn("the node's labels are not as they should be: may the service account patch nodes, as in deploy/?", "err", oneLine(err))
		}
		again, retry = time.After(retry), min(2*retry, labelsInterval)
	}
}

// setLabels puts the labels where they belong, and removes them elsewhere.
func (a *Agent) setLabels(ctx context.Context, client *apiserver.Client, want labelling) error {
	var err error
	if client != nil {
		err = client.ApplyLabels(ctx, a.cfg.NodeName, want.at(config.LabelNode))
		if want.place != config.LabelNode && apiserver.Refused(err) {
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
