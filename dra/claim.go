package dra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/gpucdi/gpucdi/allocator"
)

// ErrClaimNotFound means that a claim does not exist.
var ErrClaimNotFound = errors.New("claim not found")

// ClaimReader reads ResourceClaims from the API server.
type ClaimReader interface {
	// Claim returns the claim with that name. The error wraps ErrClaimNotFound if it does not exist.
	Claim(ctx context.Context, namespace, name string) (Claim, error)
}

// Claim has the fields of a ResourceClaim that are needed to prepare it.
type Claim struct {
	UID       string
	Allocated bool
	Devices   []ClaimDevice // of all drivers
	Config    []ClaimConfig // of all drivers, in the order of the allocation: a later one overrides an earlier one
	Consumers []Consumer
}

// ClaimDevice is a device that the scheduler allocated.
type ClaimDevice struct {
	Request     string // name of the request, or "request/subrequest"
	Driver      string
	Pool        string
	Device      string
	ShareID     string // empty unless the device allows multiple allocations
	AdminAccess bool   // granted regardless of other allocations
}

// ClaimConfig is a configuration in an allocation.
type ClaimConfig struct {
	FromClass  bool     // of a DeviceClass, not of the claim
	Requests   []string // empty for all requests
	Driver     string   // empty if the configuration is not opaque
	Parameters json.RawMessage
}

// Consumer is an object for which a claim is reserved, usually a pod.
type Consumer struct {
	APIGroup string
	Resource string // "pods"
	Name     string
	UID      string
}

// Limits for the devices and pods of a claim. The API server allows 32 and 256.
const (
	maxDevices = 128
	maxPods    = 1024
)

// pods returns the pods among the consumers.
func (c Claim) pods() (pods []Pod) {
	for _, consumer := range c.Consumers[:min(len(c.Consumers), maxPods)] {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			pods = append(pods, Pod{Name: consumer.Name, UID: consumer.UID})
		}
	}
	return pods
}

// devices returns the claim's devices of a driver. All must be in the pool of this node.
func (c Claim) devices(driver, pool string) (devices []Device, err error) {
	if !c.Allocated {
		return nil, errors.New("the scheduler has not allocated devices to it")
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
		devices = append(devices, Device{
			// The kubelet expects the request without the subrequest that the scheduler chose.
			Request: mainRequest(d.Request), Name: d.Device, ID: id, ShareID: d.ShareID, Admin: d.AdminAccess,
		})
	}
	if len(devices) == 0 {
		return nil, fmt.Errorf("no device of driver %s is allocated to it", driver)
	}
	return devices, nil
}

// mainRequest returns the name of a request without its subrequest.
func mainRequest(name string) string {
	request, _, _ := strings.Cut(name, "/")
	return request
}
