package agent

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpucdi/gpucdi/apiserver"
	"github.com/gpucdi/gpucdi/gpu"
)

// The reasons of the node's Events.
const (
	gpuUnhealthy      = "GPUUnhealthy"
	gpuHealthy        = "GPUHealthy"
	gpuDriverFailed   = "GPUDriverFailed"
	gpuDriverChanged  = "GPUDriverChanged"
	runtimeWithoutCDI = "RuntimeWithoutCDI"
)

// findEvents returns the Events of the node, or nil where there is nobody to
// tell, which it says.
func (a *Agent) findEvents() *apiserver.Events {
	if a.cfg.NodeName == "" {
		a.log.Info("no Kubernetes Events: --node-name is not given")
		return nil
	}
	client, err := apiserver.InCluster()
	switch {
	case errors.Is(err, apiserver.ErrNotInCluster):
		a.log.Info("no Kubernetes Events", "reason", err)
		return nil
	case err != nil:
		a.log.Error("no Kubernetes Events", "err", err)
		return nil
	}
	return apiserver.NewEvents(a.cfg.NodeName, client, a.log)
}

// tell makes Events of what became of GPUs, one for all that share a reason: a
// driver that goes takes all of them with it.
func (n *node) tell(changes []gpu.Change) {
	var reasons []string
	gpus := map[string][]gpu.GPU{}
	for _, c := range changes {
		reason := c.GPU.Fault
		if reason == "" && c.New {
			continue // as it should be
		}
		if gpus[reason] == nil {
			reasons = append(reasons, reason)
		}
		gpus[reason] = append(gpus[reason], c.GPU)
	}
	for _, reason := range reasons {
		n.agent.events.Record(n.event(reason, gpus[reason]))
	}
}

func (n *node) event(reason string, gpus []gpu.GPU) apiserver.Event {
	who := named(gpus)
	if reason == "" {
		return apiserver.Event{Type: apiserver.Normal, Reason: gpuHealthy, Message: who + " healthy again"}
	}
	e := apiserver.Event{Type: apiserver.Warning, Reason: gpuUnhealthy, Message: who + " unhealthy: " + reason}
	if n.driverErr != nil {
		e.Reason = gpuDriverFailed
	}
	if h := n.health.Health(gpus[0].UUID); h.Reason == reason {
		e.Message += "; it heals by " + h.Heals
	}
	return e
}

// named names GPUs as the subject of a sentence.
func named(gpus []gpu.GPU) string {
	if len(gpus) == 1 {
		return fmt.Sprintf("GPU %d (%s, %s) is", gpus[0].Index, gpus[0].Product, gpus[0].UUID)
	}
	var indexes []string
	for _, g := range gpus {
		indexes = append(indexes, fmt.Sprint(g.Index))
	}
	return "GPUs " + strings.Join(indexes, ", ") + " are"
}
