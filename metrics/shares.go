package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpucdi/gpucdi/status"
)

var (
	isolation = describe("gpucdi_device_isolation_info", "Isolation levels of a GPU or MIG device for the pods that share it; see docs/isolation.md. The value is always 1.",
		"device", "gpu", "memory", "compute")

	freeCores  = describe("gpucdi_shared_cores_free", "Cores of a shared GPU or MIG device that are not allocated to a prepared claim, of 100.", "device", "gpu")
	freeMemory = describe("gpucdi_shared_memory_free_bytes", "Advertised memory of a shared GPU or MIG device that is not allocated to a prepared claim.", "device", "gpu")

	shareCores  = describe("gpucdi_share_cores", "Cores of a shared GPU or MIG device that are allocated to a prepared claim, of 100.", shareLabels...)
	coresLimit  = describe("gpucdi_share_cores_limit", "Compute time to which MPS limits a claim, or the replicas of a pod, in cores of 100 of a GPU. Missing if it is not limited.", shareLabels...)
	shareMemory = describe("gpucdi_share_memory_bytes", "Memory of a shared GPU or MIG device that is allocated to a prepared claim, or to a pod through replicas with a memory limit.", shareLabels...)
	shareLimit  = describe("gpucdi_share_memory_limit_bytes", "Memory that a claim, or the replicas of a pod, add to the limit of the pod on a GPU. Missing if the driver does not limit the pod.", shareLabels...)
	shareUsed   = describe("gpucdi_share_memory_used_bytes", "Memory of a shared GPU that a pod uses, through all of its claims or replicas. Missing if the driver does not limit the pod.", shareLabels...)
)

// shareLabels are the labels of a share. It has one pod, since a claim for a part of a GPU must be reserved for one. The
// claim is empty for replicas. If it has several containers, their names are separated by commas.
var shareLabels = []string{"device", "gpu", "namespace", "claim", "pod", "container"}

func shareDescs() []*prometheus.Desc {
	return []*prometheus.Desc{isolation, freeCores, freeMemory, shareCores, coresLimit, shareMemory, shareLimit, shareUsed}
}

// shares collects the isolation of devices, and the shares of claims and pods. A device can be in several rows of the
// status, for example while it moves to another resource, and a share in several of them; the first one counts.
func (s sink) shares(devices []status.Device) {
	isolated, shared, listed := map[string]bool{}, map[string]bool{}, map[[4]string]bool{}
	for _, d := range devices {
		if !isolated[d.ID] {
			isolated[d.ID] = true
			s.gauge(isolation, 1, d.ID, d.GPU, d.MemoryIsolation, d.ComputeIsolation)
		}
		if d.Sharing == nil {
			continue
		}
		if d.Sharing.Capacity.Cores > 0 && !shared[d.ID] {
			shared[d.ID] = true
			s.gauge(freeCores, float64(d.Sharing.Free.Cores), d.ID, d.GPU)
			s.gauge(freeMemory, float64(d.Sharing.Free.MemoryBytes), d.ID, d.GPU)
		}
		for _, share := range d.Sharing.Shares {
			pod := ""
			if len(share.Pods) > 0 {
				pod = share.Pods[0]
			}
			if key := [4]string{d.ID, share.Namespace, share.Claim, pod}; !listed[key] {
				listed[key] = true
				s.share(share, d.ID, d.GPU, share.Namespace, share.Claim, pod, strings.Join(share.Containers, ","))
			}
		}
	}
}

// share collects a share with the values of shareLabels.
func (s sink) share(share status.Share, labels ...string) {
	if share.Replicas == 0 {
		s.gauge(shareCores, float64(share.Cores), labels...)
	}
	if share.Replicas == 0 || share.MemoryLimited {
		s.gauge(shareMemory, float64(share.MemoryBytes), labels...)
	}
	if share.ComputeCeiling > 0 {
		s.gauge(coresLimit, float64(share.ComputeCeiling), labels...)
	}
	if share.MemoryLimited {
		s.gauge(shareLimit, float64(share.MemoryBytes), labels...)
	}
	if share.MemoryUsed != nil {
		s.gauge(shareUsed, float64(*share.MemoryUsed), labels...)
	}
}
