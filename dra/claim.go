package dra

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/cluster"
)

// ClaimReader reads ResourceClaims from the API server. *cluster.Client implements it.
type ClaimReader interface {
	// Claim returns the claim with that name. The error wraps cluster.ErrNotFound if it does not exist.
	Claim(ctx context.Context, namespace, name string) (cluster.Claim, error)
}

// maxDevices limits the devices of a claim. The API server allows 32.
const maxDevices = 128

// maxPods bounds the pods of a record. The API server allows 256 pods for which a claim is reserved at a time.
const maxPods = allocator.MaxClaimPods

// podsOf returns the pods for which a claim is reserved.
func podsOf(c cluster.Claim) (pods []Pod) {
	for _, consumer := range c.Consumers[:min(len(c.Consumers), maxPods)] {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			pods = append(pods, Pod{Name: consumer.Name, UID: consumer.UID})
		}
	}
	return pods
}

// devicesOf returns the claim's devices of a driver, with their parameters. All must be in the pool of this node.
func devicesOf(c cluster.Claim, driver, pool string) (devices []Device, err error) {
	if !c.Allocated {
		return nil, errors.New("the scheduler has not allocated devices to the claim")
	}
	if len(c.Devices) > maxDevices {
		return nil, fmt.Errorf("%d devices are more than the maximum of %d", len(c.Devices), maxDevices)
	}
	for _, d := range c.Devices {
		if d.Driver != driver {
			continue
		}
		id, known := DeviceID(d.Device)
		if d.Pool != pool || !known {
			return nil, fmt.Errorf("%w: device %q of pool %q is not a device of this node, whose pool is %s; delete the pod to get another device",
				allocator.ErrUnknown, d.Device, d.Pool, pool)
		}
		p, err := parametersFor(c, d)
		if err != nil {
			return nil, err
		}
		amount, err := amountOf(d)
		if err != nil {
			return nil, err
		}
		if p.timeSlice != "" && d.ShareID != "" && amount.Cores < allocator.WholeCores {
			return nil, unsupported("status.allocation.devices.config", "request %s gets a share of a GPU, and a time slice applies to all of it; remove sharing", d.Request)
		}
		devices = append(devices, Device{
			// The kubelet expects the request without the subrequest that the scheduler chose.
			Request: mainRequest(d.Request), Name: d.Device, ID: id, ShareID: d.ShareID, Admin: d.AdminAccess,
			Amount: amount, TimeSlice: p.timeSlice, Features: p.features, ComputeCeiling: p.ceilingOf(amount.Cores),
		})
	}
	if len(devices) == 0 {
		return nil, fmt.Errorf("no device of driver %s is allocated to the claim", driver)
	}
	return devices, nil
}

// amountOf returns the amount of a device that is allocated to a claim; zero for all of it.
func amountOf(d cluster.ClaimDevice) (amount allocator.Amount, err error) {
	for name, to := range map[string]*uint64{capacityCores: &amount.Cores, capacityShares: &amount.Replicas} {
		if text, found := d.Consumed[name]; found {
			if *to, err = cluster.ParseQuantity(text); err != nil {
				return allocator.Amount{}, fmt.Errorf("reading consumedCapacity %s of device %s: %w", name, d.Device, err)
			}
		}
	}
	if amount.Cores == 0 {
		return amount, nil
	}
	if amount.Memory, err = cluster.ParseQuantity(d.Consumed[capacityMemory]); err != nil {
		return allocator.Amount{}, fmt.Errorf("reading consumedCapacity %s of device %s: %w", capacityMemory, d.Device, err)
	}
	return amount, nil
}

// Amounts returns the amounts that are allocated to a claim of the devices of a driver in a pool, by ID. It omits devices
// that the claim has to itself.
func Amounts(devices []cluster.ClaimDevice, driver, pool string) map[string]allocator.Amount {
	var amounts map[string]allocator.Amount
	for _, d := range devices {
		id, known := DeviceID(d.Device)
		amount, err := amountOf(d)
		if !known || d.Driver != driver || d.Pool != pool || d.AdminAccess || err != nil || amount == (allocator.Amount{}) {
			continue
		}
		if amounts == nil {
			amounts = map[string]allocator.Amount{}
		}
		amounts[id] = amounts[id].Add(amount)
	}
	return amounts
}

// mainRequest returns the name of a request without its subrequest.
func mainRequest(name string) string {
	request, _, _ := strings.Cut(name, "/")
	return request
}
