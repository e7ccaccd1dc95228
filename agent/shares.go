package agent

import (
	"slices"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/dra"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/runtime"
	"github.com/gpucdi/gpucdi/status"
)

// sharing returns the shares that prepared claims have of a device; nil if it is not shared.
func (c *claims) sharing(d allocator.Device) *status.Sharing {
	if c == nil || d.Sharing == "" || d.Capacity == (allocator.Amount{}) {
		return nil
	}
	free, s := d.Capacity, status.Sharing{Capacity: amountStatus(d.Capacity)}
	for _, r := range c.driver.Records() {
		if share, amount := shareStatus(r, d); share != nil {
			s.Shares = append(s.Shares, *share)
			free = free.Minus(amount)
		}
	}
	s.Free = amountStatus(free)
	return &s
}

// measure sets how much memory the pods of claims use.
func (c *claims) measure(devices []status.Device, used *usedMemory) {
	if c == nil {
		return
	}
	pods := map[string][]dra.Pod{} // by claim
	for _, r := range c.driver.Records() {
		pods[r.Namespace+"/"+r.Name] = r.Pods
	}
	for _, d := range devices {
		if d.Sharing == nil {
			continue
		}
		for i := range d.Sharing.Shares {
			share := &d.Sharing.Shares[i]
			share.MemoryUsed = used.sum(pods[share.Namespace+"/"+share.Claim], d.ID)
		}
	}
}

// shareStatus returns the share that a claim has of a device, and its amount; nil if it has none.
func shareStatus(r dra.Record, d allocator.Device) (share *status.Share, amount allocator.Amount) {
	ceiling, found := 0, false
	for _, device := range r.Devices {
		if device.ID == d.ID && !device.Admin {
			amount, ceiling, found = amount.Add(device.Amount), device.MPSPercentage, true
		}
	}
	if !found {
		return nil, allocator.Amount{}
	}
	partial := amount.Partial()
	if !partial && amount.Replicas == 0 { // the claim has the whole device
		amount = d.Capacity
	}
	share = &status.Share{
		Namespace: r.Namespace, Claim: r.Name, Amount: amountStatus(amount), ComputeCeiling: ceiling,
		MemoryLimited: partial && (d.Class == allocator.MemoryLimited || d.Class == allocator.Ceiled),
	}
	for _, p := range r.Pods {
		share.Pods = append(share.Pods, p.Name)
	}
	return share, amount
}

func amountStatus(a allocator.Amount) status.Amount {
	return status.Amount{Cores: a.Cores, MemoryBytes: a.Memory, Replicas: a.Replicas}
}

// replicaShares determines how pods share devices through replicas with memory limits.
type replicaShares struct {
	pods map[runtime.Pod]string // UIDs of the running pods, by pods without UID
	held []kubelet.Holder
	used *usedMemory
}

// podUIDs returns the UIDs of the pods of containers. It omits pods with the same name, one of which was deleted by force.
func podUIDs(containers []runtime.Container) map[runtime.Pod]string {
	uids, ambiguous := map[runtime.Pod]string{}, []runtime.Pod{}
	for _, c := range containers {
		pod := runtime.Pod{Namespace: c.Pod.Namespace, Name: c.Pod.Name}
		if uid, found := uids[pod]; found && uid != c.Pod.UID {
			ambiguous = append(ambiguous, pod)
		}
		uids[pod] = c.Pod.UID
	}
	for _, pod := range ambiguous {
		delete(uids, pod)
	}
	return uids
}

// set sets Sharing of the devices whose replicas have memory limits. A device can have several rows, for example
// while its number of replicas changes. Each pod is in the first row of the device that has one of its replicas.
func (r replicaShares) set(devices []status.Device) {
	listed := map[share]bool{}
	for i, d := range devices {
		for _, h := range r.held {
			if h.Claim != "" || h.Resource != d.Resource || !slices.Contains(d.Replicas, h.Device) {
				continue
			}
			pod := runtime.Pod{Namespace: h.Namespace, Name: h.Pod}
			memory, limited := r.used.of(r.pods[pod], d.ID)
			if !limited || listed[share{d.ID, pod}] {
				continue
			}
			listed[share{d.ID, pod}] = true
			if devices[i].Sharing == nil {
				devices[i].Sharing = &status.Sharing{}
			}
			devices[i].Sharing.Shares = append(devices[i].Sharing.Shares, status.Share{
				Namespace: h.Namespace, Pods: []string{h.Pod}, MemoryLimited: true, ComputeCeiling: memory.ceiling,
				Amount: status.Amount{MemoryBytes: memory.limit, Replicas: r.count(d.ID, h)}, MemoryUsed: new(memory.used),
			})
		}
	}
}

// setContainers sets the containers of all shares of devices.
func setContainers(devices []status.Device, held []kubelet.Holder) {
	for _, d := range devices {
		if d.Sharing == nil {
			continue
		}
		for i := range d.Sharing.Shares {
			share := &d.Sharing.Shares[i]
			for _, h := range held {
				if h.Namespace == share.Namespace && h.Claim == share.Claim && slices.Contains(share.Pods, h.Pod) &&
					(h.Claim != "" || allocator.DeviceOf(h.Device) == d.ID) && !slices.Contains(share.Containers, h.Container) {
					share.Containers = append(share.Containers, h.Container)
				}
			}
			slices.Sort(share.Containers)
		}
	}
}

// share identifies the share of a pod.
type share struct {
	device string
	pod    runtime.Pod
}

// count returns the number of replicas of a device that the pod of a holder has.
func (r replicaShares) count(device string, of kubelet.Holder) (n uint64) {
	for _, h := range r.held {
		if h.Claim == "" && h.Namespace == of.Namespace && h.Pod == of.Pod && h.Device != device && allocator.DeviceOf(h.Device) == device {
			n++
		}
	}
	return n
}
