package agent

import (
	"errors"

	"github.com/gpucdi/gpucdi/cluster"
)

// findCluster returns a client of the API server, or why there is none, which it logs.
func (a *Agent) findCluster() (*cluster.Client, error) {
	const without = "no API server: no Kubernetes Events, no labels, and no section of the config holds by a label"
	if a.cfg.NodeName == "" {
		a.log.Info(without, "reason", "--node-name is not given")
		return nil, errors.New("--node-name is not set")
	}
	client, err := cluster.InCluster()
	switch {
	case errors.Is(err, cluster.ErrNotInCluster):
		a.log.Info(without, "reason", err)
	case err != nil:
		a.log.Error(without, "err", err)
	}
	return client, err
}
