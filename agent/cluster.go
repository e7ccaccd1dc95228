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
		return nil
	}
	client, err := apiserver.InCluster()
	switch {
	case errors.Is(err, apiserver.ErrNotInCluster):
		a.log.Info(without, "reason", err)
		return nil
	case err != nil:
		a.log.Error(without, "err", err)
		return nil
	}
	return client
}
