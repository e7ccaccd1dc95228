package dra

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/gpu"
)

// Record is a prepared claim. Records are immutable.
type Record struct {
	UID       string // of the claim
	Namespace string
	Name      string
	Devices   []Device
	Pods      []Pod // for which it is or was reserved, the latest first; see withPods
	Prepared  time.Time

	// Damaged is the reason why the file of the record cannot be read; empty if it can. Only UID is known then: the claim
	// may have any device.
	Damaged string
}

// Device is a device of a prepared claim.
type Device struct {
	Request string `json:"request"`           // name of the request, without the subrequest
	Name    string `json:"name"`              // in the ResourceSlices
	ID      string `json:"id"`                // in the ledger; also the name of its CDI device
	ShareID string `json:"shareID,omitempty"` // empty unless the device allows multiple allocations
	Admin   bool   `json:"adminAccess,omitempty"`

	Amount allocator.Amount `json:"amount,omitzero"` // of a shared device; zero: all of it

	TimeSlice gpu.TimeSlice `json:"timeSlice,omitempty"` // of the GPU while the claim is prepared; empty: not changed

	// ComputeCeiling is the maximum compute time in percent of the GPU; 0: none. It is not enforced with time slicing.
	ComputeCeiling int `json:"computeCeiling,omitempty"`

	// MPSPercentage is the maximum compute time that MPS enforces, in percent of the GPU; 0: the device is not used through
	// MPS.
	MPSPercentage int `json:"mpsPercentage,omitempty"`

	Features allocator.Features `json:"features,omitempty"` // that the claim selects
	Variants allocator.Features `json:"variants,omitempty"` // those for which its containers get variants of the CDI device
}

// Pod is a pod for which a claim is reserved.
type Pod struct {
	Name string `json:"name"` // in the namespace of the claim
	UID  string `json:"uid"`
}

// maxPodsShown bounds the pods in messages.
const maxPodsShown = 3

// grant returns the claim as the Gate needs it.
func (r Record) grant() allocator.Claim {
	amounts := map[string]allocator.Amount{}
	c := allocator.Claim{UID: r.UID, Namespace: r.Namespace, Name: r.Name, Amounts: amounts}
	var names []string
	for _, p := range r.Pods {
		c.Pods, names = append(c.Pods, p.UID), append(names, p.Name)
	}
	c.PodNames = firstPods(names)
	for _, d := range r.Devices {
		if d.Admin {
			c.Admin = append(c.Admin, d.ID)
		} else {
			c.Devices = append(c.Devices, d.ID)
			if d.Amount != (allocator.Amount{}) {
				amounts[d.ID] = amounts[d.ID].Add(d.Amount)
			}
		}
	}
	return c
}

// firstPods returns the first pods, and the number of the others.
func firstPods(pods []string) string {
	shown := slices.Clone(pods[:min(len(pods), maxPodsShown)])
	if more := len(pods) - len(shown); more > 0 {
		shown = append(shown, fmt.Sprintf("%d more", more))
	}
	return strings.Join(shown, ", ")
}

// withPods returns the record with the pods for which the claim is reserved, followed by its earlier pods, maxPods at
// most. A pod that was deleted by force may still have containers, which the ledger finds by the pod's sandbox.
func (r Record) withPods(reserved []Pod) Record {
	var pods []Pod
	known := map[string]bool{}
	for _, p := range slices.Concat(reserved, r.Pods) {
		if !known[p.UID] && len(pods) < maxPods {
			known[p.UID], pods = true, append(pods, p)
		}
	}
	r.Pods = pods
	return r
}

// sameDevices reports whether the allocation has the devices of the record with the same parameters, in any order.
func (r Record) sameDevices(devices []Device) bool {
	return slices.EqualFunc(sortedDevices(r.Devices), sortedDevices(devices), func(recorded, d Device) bool {
		recorded.Variants, recorded.MPSPercentage = d.Variants, d.MPSPercentage // not part of the allocation
		return recorded == d
	})
}

func sortedDevices(devices []Device) []Device {
	return slices.SortedFunc(slices.Values(devices), func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Request, b.Request), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ShareID, b.ShareID))
	})
}
