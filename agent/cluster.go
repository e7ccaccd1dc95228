package agent

import (
	"context"
	"errors"
	"time"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/labels"
)

// newClusterClient returns a client of the API server. It logs the error that it returns.
func (a *Agent) newClusterClient() (*cluster.Client, error) {
	const message = "no API server access; Events, label-selected config, and labels, condition and taint of the Node are disabled"
	if a.cfg.NodeName == "" {
		a.log.Info(message, "reason", "--node-name is not set")
		return nil, errors.New("--node-name is not set")
	}
	client, err := cluster.InCluster()
	switch {
	case errors.Is(err, cluster.ErrNotInCluster):
		a.log.Info(message, "reason", err)
	case err != nil:
		a.log.Error(message, "err", err)
	default:
		client.Spread = a.cfg.Spread
	}
	return client, err
}

const (
	// nodeEventInterval bounds the rate of Events of the node.
	nodeEventInterval = 10 * time.Second
	// claimEventInterval bounds the rate of Events of claims, of which a node can prepare several per second.
	claimEventInterval = 200 * time.Millisecond
)

// startViews starts the recorder of Events of the node and the writer of the Node's labels, and returns the writer.
func (a *Agent) startViews(client *cluster.Client, background func(run func(context.Context))) *cluster.NodeLabels {
	a.events = cluster.NewEventRecorder(a.cfg.NodeName, client, nodeEventInterval, a.log)
	background(a.events.Run)
	nodeLabels := cluster.NewNodeLabels(client, a.cfg.NodeName, labels.Routine, a.log)
	background(nodeLabels.Run)
	return nodeLabels
}
