package agent

import (
	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/dra"
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
