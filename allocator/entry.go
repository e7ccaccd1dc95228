package allocator

import (
	"fmt"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// Key names an entry of the ledger: the outlet that gives it out and the ID that
// it has there. An outlet excludes double use of its own IDs. The resources of
// the device plugin are outlets, by their names.
type Key struct {
	Outlet string `json:"outlet"`
	ID     string `json:"id"`
}

func (k Key) String() string { return k.Outlet + " " + k.ID }

func (k Key) compare(l Key) int {
	if k.Outlet != l.Outlet {
		if k.Outlet < l.Outlet {
			return -1
		}
		return 1
	}
	switch {
	case k.ID < l.ID:
		return -1
	case k.ID > l.ID:
		return 1
	}
	return 0
}

// State is the state of an entry. All states are listed to the kubelet, only
// StateAvailable as healthy.
type State string

// The states of an entry.
const (
	StateWaiting     State = "waiting"     // wanted, but an overlapping part may be held
	StateAvailable   State = "available"   // may be allocated
	StateUnavailable State = "unavailable" // has a fault; a holder keeps it
	StateDraining    State = "draining"    // not wanted any more, and may be held
	StateReleased    State = "released"    // proved free; only listed
)

// Reason is why an entry drains.
type Reason string

// The reasons to drain.
const (
	ReasonConfig        Reason = "config"        // the config does not offer it any more
	ReasonRepartitioned Reason = "repartitioned" // its GPU has other MIG devices now
	ReasonGone          Reason = "gone"          // its GPU is gone
	ReasonUnknown       Reason = "unknown"       // only evidence names it: an earlier agent offered it
)

func (r Reason) describe() string {
	switch r {
	case ReasonConfig:
		return "no longer offered as this resource"
	case ReasonRepartitioned:
		return "its GPU is partitioned differently now"
	case ReasonGone:
		return "the driver no longer lists it"
	}
	return "allocated by an earlier agent, and not offered any more"
}

// Drain says why and since when an entry drains.
type Drain struct {
	Reason Reason    `json:"reason,omitempty"`
	Since  time.Time `json:"since,omitzero"`
}

// Entry is one ID of an outlet and what is known about its holders. Entries are
// immutable.
type Entry struct {
	Key
	Part  Part
	State State
	Fault gpu.Fault // set if unavailable
	Drain Drain     // set if draining

	since   time.Time // see Since
	accepts bool      // the gate grants it

	// Grants: seq and last are those of the gate. An entry is dirty from its
	// first grant, or from the start if an earlier agent may have granted it,
	// until it is released.
	dirty bool
	seq   uint64
	last  time.Time
	pods  []string // UIDs that the checkpoint named, since it drains if it does; sorted

	// Stamps of the release, by the clock that Next is given.
	withdrawn time.Time // first not available any more
	takenIn   bool      // the kubelet has processed the list that withdrew it
	unbooked  time.Time // answer of the checkpoint that proved that the kubelet's records lack it

	released time.Time // the last time; zero if never advertised before
}

// Since is since when the entry is in its state, with its fault if it has one.
func (e Entry) Since() time.Time { return e.since }

// Why describes why the gate does not grant the entry.
func (e Entry) Why() string {
	switch e.State {
	case StateWaiting:
		return "waits until overlapping devices are released"
	case StateUnavailable:
		return e.Fault.String()
	case StateDraining:
		return fmt.Sprintf("draining since %s: %s", e.Drain.Since.UTC().Format(time.RFC3339), e.Drain.Reason.describe())
	case StateReleased:
		return "not offered any more"
	}
	return ""
}

// mayBeHeld reports whether the entry excludes overlapping ones.
func (e *Entry) mayBeHeld() bool {
	return e.State == StateAvailable || e.State == StateUnavailable || e.State == StateDraining
}
