package dra

import (
	"context"
	"errors"
	"time"

	"github.com/gpucdi/gpucdi/allocator"
)

// Outcome is the result of a call for one claim.
type Outcome struct {
	Namespace, Name, UID string
	Took                 time.Duration
	Refusal              Refusal // empty if the call succeeded
	Err                  error   // nil if the call succeeded

	Devices []Device // that the call prepared; empty if they were prepared before
}

// Refusal is the kind of reason why a claim was not prepared or unprepared.
type Refusal string

// The kinds of refusals.
const (
	RefusedHeld     Refusal = "held"     // another holder did not release a device in time
	RefusedUnknown  Refusal = "unknown"  // a device is not in the ResourceSlices of this node
	RefusedFault    Refusal = "fault"    // a device is unhealthy
	RefusedConfig   Refusal = "config"   // gpucdi, the NVIDIA driver or the GPU does not support the configuration
	RefusedRecord   Refusal = "record"   // the record cannot be written or removed
	RefusedDriver   Refusal = "driver"   // a time slice, or a limit of memory or compute time, was not applied
	RefusedCanceled Refusal = "canceled" // the kubelet, the end of the agent or a timeout canceled the call
	RefusedClaim    Refusal = "claim"    // the claim cannot be read, was replaced, or is invalid for this driver or its pods
)

// Refusals returns all kinds of refusals.
func Refusals() []Refusal {
	return []Refusal{RefusedHeld, RefusedUnknown, RefusedFault, RefusedConfig, RefusedRecord, RefusedDriver, RefusedCanceled, RefusedClaim}
}

// refusal returns the kind of an error; empty for nil. If it wraps several errors of the list, the first one counts.
func refusal(err error) Refusal {
	if err == nil {
		return ""
	}
	for _, kind := range []struct {
		err     error
		refusal Refusal
	}{
		{errUnsupported, RefusedConfig},
		{errors.ErrUnsupported, RefusedConfig},
		{errRecord, RefusedRecord},
		{allocator.ErrUnknown, RefusedUnknown},
		{allocator.ErrUnhealthy, RefusedFault},
		{errStopping, RefusedCanceled},
		{errCanceled, RefusedCanceled},
		{allocator.ErrHeld, RefusedHeld},
		{errTimeSlice, RefusedDriver},
		{errMemoryLimit, RefusedDriver},
		{errComputeLimit, RefusedDriver},
		{errTimeout, RefusedCanceled},
		{context.Canceled, RefusedCanceled},
		{context.DeadlineExceeded, RefusedCanceled},
	} {
		if errors.Is(err, kind.err) {
			return kind.refusal
		}
	}
	return RefusedClaim
}

// Observer receives the registrations and the results of calls to a Driver. Its methods must not block, because the
// kubelet waits for them, and must be safe for concurrent use.
type Observer interface {
	Registered()
	// Waiting receives the latest reason why a call to prepare a claim waits for devices. Prepared follows.
	Waiting(Outcome)
	Prepared(Outcome)
	Unprepared(Outcome)
}

type noObserver struct{}

func (noObserver) Registered()        {}
func (noObserver) Waiting(Outcome)    {}
func (noObserver) Prepared(Outcome)   {}
func (noObserver) Unprepared(Outcome) {}
