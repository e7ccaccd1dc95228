package agent

import (
	"errors"

	"github.com/gpucdi/gpucdi/apiserver"
)

// findCluster returns the API server that knows this node, or nil where there
// is none, which it says.
func (a *Agent) findCluster() *apiserver.Client {
	const without = "no API server: no Kubernetes Events, no labels, and no section of the config holds by a label"
	if a.cfg.NodeName == "" {
		a.log.Info(without, "reason", "--node-name is not given")
		a.view.labelsUnknown(errors.New("--node-name is not set"))
		return nil
	}
	client, err := apiserver.InCluster()
	switch {
	case errors.Is(err, apiserver.ErrNotInCluster):
		a.log.Info(without, "reason", err)
	case err != nil:
		a.log.Error(without, "err", err)
	default:
		a.view.labelsUnknown(errors.New("the node's labels were not received yet"))
		return client
	}
	a.view.labelsUnknown(err)
	return nil
}

// labelsUnknown reports why no section of the config is applied by the node's labels.
func (v *view) labelsUnknown(err error) {
	why := "sections that select by label are not applied: " + oneLine(err)
	v.labels.Store(&why)
}

// labelsStale reports why those that are applied may be out of date.
func (v *view) labelsStale(err error) {
	why := "sections that select by label may be out of date: " + oneLine(err)
	v.labels.Store(&why)
}

// labelsKnown reports that they are applied by the current labels.
func (v *view) labelsKnown() { v.labels.Store(new(string)) }
