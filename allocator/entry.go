package allocator

import (
	"fmt"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// Key identifies an entry of the ledger: an ID and the outlet through which it is allocated. An outlet is a resource of
// the device plugin, by its name, or SliceOutlet. Within an outlet, the kubelet or the scheduler does not allocate an
// ID twice, unless claims share it.
type Key struct {
	Outlet string `json:"outlet"`
	ID     string `json:"id"`
}

// SliceOutlet is the outlet of the node's ResourceSlices, whose devices the scheduler allocates to claims.
const SliceOutlet = "slice"

// sliced reports whether the outlet is the node's ResourceSlices.
func (k Key) sliced() bool { return k.Outlet == SliceOutlet }

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

// State is the state of an entry. The kubelet's list contains entries in all states; only available ones are healthy.
type State string

// The states of an entry.
const (
	StateWaiting     State = "waiting"     // wanted, but its part may be held, or its CDI device is not verified
	StateAvailable   State = "available"   // may be allocated
	StateUnavailable State = "unavailable" // has a fault, or was restored and its CDI device is not verified yet; holders keep it
	StateDraining    State = "draining"    // withdrawn for a Reason, but may be held
	StateReleased    State = "released"    // proved free; still listed
)

// Reason is why an entry drains.
type Reason string

// The reasons for draining.
const (
	ReasonConfig        Reason = "config"        // the config no longer advertises it, or advertises it differently
	ReasonRepartitioned Reason = "repartitioned" // its GPU was repartitioned, or MIG mode was enabled or disabled
	ReasonGone          Reason = "gone"          // its GPU is gone, or in MIG mode without MIG devices
	ReasonUnknown       Reason = "unknown"       // known only from evidence: an earlier agent advertised it
)

func (r Reason) describe() string {
	switch r {
	case ReasonConfig:
		return "the config no longer advertises it in this way"
	case ReasonRepartitioned:
		return "its GPU was repartitioned"
	case ReasonGone:
		return "the driver no longer lists it, or its GPU is in MIG mode without MIG devices"
	}
	return "advertised by an earlier agent and may still be allocated"
}

// Drain is the reason and the start of draining.
type Drain struct {
	Reason Reason    `json:"reason,omitempty"`
	Since  time.Time `json:"since,omitzero"`
}

// Entry is one ID of an outlet, its state and the evidence about its holders. Entries are immutable.
type Entry struct {
	Key
	Part  Part
	State State

	// Features are those of the rule that applied when it was last available. They also apply to a container to which it
	// is granted while it drains.
	Features Features

	// Capacity is the total that claims could get when it was last available. It is zero if claims do not share it.
	Capacity Amount

	Fault gpu.Fault // only set if unavailable
	Drain Drain     // set if draining

	since   time.Time // see Since()
	accepts bool      // the gate grants it

	// A dirty entry may be held. An entry is dirty from its first grant, or from the start of the agent if an earlier
	// agent may have granted it, until it is proved free.
	dirty bool
	seq   uint64    // of the last grant
	last  time.Time // time of the last grant
	pods  []string  // UIDs of its pods since the last grant, from checkpoint and claims, sorted; of a draining or shared entry also earlier ones

	// holders are the UIDs of the pods of the prepared claim that has the unshared entry of the slice, sorted. They are not
	// in pods before the claim ends: pods of a claim in continuous use add up, and a claim that was restored as a holder
	// may turn out to monitor the device.
	holders []string

	ended     []EndedClaim // claims whose containers may still use the shared entry
	lastEnded uint64       // Number of the last one in the observed Grants
	joins     Joins        // of the last claim that has ended, or may have

	// Progress of the release, by the clock of Next.
	withdrawn  time.Time // when it stopped being available, or got a fault while it drained; otherwise when it started to drain; at the earliest the start of the agent; zero before
	processed  time.Time // when the kubelet had processed its withdrawal, or the API server had acknowledged it; zero before
	unrecorded time.Time // when the kubelet's records, or for the slice the prepared claims, were proved to lack it; zero if not proved
	claim      string    // name of the claim that prevents the release of an entry of the slice, for messages

	released time.Time // last release; zero if it was never released
}

// Since returns when the entry entered its state or got its fault.
func (e Entry) Since() time.Time { return e.since }

// Message describes why the entry is not available; empty if it is available, or unavailable without a Fault.
func (e Entry) Message() string {
	switch e.State {
	case StateWaiting:
		return "waits for overlapping devices to be released, or for its CDI spec to be on disk"
	case StateUnavailable:
		return e.Fault.String()
	case StateDraining:
		return fmt.Sprintf("draining since %s: %s", e.Drain.Since.UTC().Format(time.RFC3339), e.Drain.Reason.describe())
	case StateReleased:
		return "no longer advertised"
	}
	return ""
}

// shared reports whether claims share the entry.
func (e *Entry) shared() bool { return e.Part.Share.Unit != "" }

// mayBeHeld reports whether the entry excludes overlapping ones. It depends on the state instead of dirty, because the
// gate may have granted the entry since its grants were observed.
func (e *Entry) mayBeHeld() bool {
	return e.State == StateAvailable || e.State == StateUnavailable || e.State == StateDraining
}
