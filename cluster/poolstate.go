package cluster

import (
	"maps"
	"slices"
	"strconv"
)

const (
	// maxForeign bounds the number of reported foreign slices, and fieldLimit the length of their fields, in bytes.
	maxForeign = 16
	fieldLimit = 253
)

// poolState is the state in the API server according to its latest responses.
type poolState struct {
	known    bool             // at least one list has succeeded
	revision uint64           // latest revision that is completely published
	problem  string           // see PoolStatus.Error
	own      map[string]slice // by name
	foreign  map[string]slice // by name

	accepted  map[string]acceptance // by name of the slice
	refused   map[string]refusal    // by name of the device
	uncertain map[string]bool       // names of slices with a write that was neither accepted nor refused
	added     map[taintKey]string   // times at which taints were added

	// dropped has the paths of the fields that were dropped when they were last sent. It outlives the slices with them:
	// a publisher may omit devices because of it.
	dropped map[string]bool
}

// acceptance records how the API server stored a sent slice: it drops unknown fields and formats quantities.
type acceptance struct {
	sent, stored string // see specForm
	lossy        bool   // the API server has dropped fields
}

// refusal is a device that the API server does not accept.
type refusal struct {
	device string // as JSON
	reason string
}

// taintKey identifies a taint of a device.
type taintKey struct {
	device string
	Taint
}

func newPoolState() poolState {
	return poolState{
		own: map[string]slice{}, foreign: map[string]slice{},
		accepted: map[string]acceptance{}, refused: map[string]refusal{}, uncertain: map[string]bool{},
		added: map[taintKey]string{}, dropped: map[string]bool{},
	}
}

// store records a slice from a response. Responses to lists, watches and writes overlap, so an older version may
// arrive later and is ignored.
func (s *poolState) store(received slice) (changed bool) {
	target := s.foreign
	if isOwnSlice(received.Name) {
		target = s.own
	}
	if held, ok := target[received.Name]; ok && !isNewer(received.ResourceVersion, held.ResourceVersion) {
		return false
	}
	target[received.Name] = received
	for _, device := range received.spec.Devices {
		for _, taint := range device.Taints {
			s.added[taintKey{device.Name, taint.Taint}] = taint.TimeAdded
		}
	}
	return true
}

// isNewer reports whether resource version a is newer than b. They are increasing integers; if one is not an
// integer, a counts as newer.
func isNewer(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX != nil || errY != nil || x > y
}

// remove records the deletion of a slice. It ignores the deletion of an earlier slice with the same name.
func (s *poolState) remove(deleted slice) (changed bool) {
	for _, held := range []map[string]slice{s.own, s.foreign} {
		if current, ok := held[deleted.Name]; ok && current.UID == deleted.UID {
			delete(held, deleted.Name)
			changed = true
		}
	}
	return changed
}

// replace records the complete state.
func (s *poolState) replace(all []slice) {
	s.known = true
	clear(s.own)
	clear(s.foreign)
	for _, received := range all {
		s.store(received)
	}
}

// accept records how the API server stored a sent slice.
func (s *poolState) accept(change sliceChange, stored slice) {
	lossy := false
	for field, dropped := range compareFields(change.form, stored.form) {
		lossy = lossy || dropped
		if dropped {
			s.dropped[field] = true
		} else {
			delete(s.dropped, field)
		}
	}
	s.accepted[change.name] = acceptance{change.form, stored.form, lossy}
}

// clearRejections clears the dropped fields and the refused devices, so that they are sent again. An API server that
// was unavailable may have another version or other feature gates now.
func (s *poolState) clearRejections() {
	maps.DeleteFunc(s.accepted, func(_ string, a acceptance) bool { return a.lossy })
	clear(s.dropped)
	clear(s.refused)
}

// prune removes the state of slices and taints that are no longer wanted. No write is uncertain once the slices match
// the plan.
func (s *poolState) prune(plan poolPlan) {
	taints := map[taintKey]bool{}
	for _, spec := range plan.specs {
		for _, device := range spec.Devices {
			for _, taint := range device.Taints {
				taints[taintKey{device.Name, taint.Taint}] = true
			}
		}
	}
	maps.DeleteFunc(s.added, func(key taintKey, _ string) bool { return !taints[key] })
	maps.DeleteFunc(s.accepted, func(name string, _ acceptance) bool { return !slices.Contains(plan.names, name) })
	clear(s.uncertain)
}

// status returns the status that the pool publishes. setStatus adds Since.
func (s *poolState) status() PoolStatus {
	view := PoolStatus{Revision: s.revision, Error: s.problem}
	for _, name := range slices.Sorted(maps.Keys(s.own)) {
		for _, device := range s.own[name].spec.Devices {
			view.Devices = append(view.Devices, device.Name)
		}
	}
	for name, r := range s.refused {
		if view.Refused == nil {
			view.Refused = map[string]string{}
		}
		view.Refused[name] = r.reason
	}
	view.Dropped = slices.Sorted(maps.Keys(s.dropped))
	view.Foreign = s.foreignSlices()
	return view
}

// foreignSlices returns the first maxForeign foreign slices in the order of their names.
func (s *poolState) foreignSlices() (all []ForeignSlice) {
	for _, name := range slices.Sorted(maps.Keys(s.foreign)) {
		if len(all) == maxForeign {
			break
		}
		f := s.foreign[name]
		all = append(all, ForeignSlice{
			Name: truncate(f.Name, fieldLimit), Pool: truncate(f.spec.Pool.Name, fieldLimit),
			Manager: truncate(f.manager, fieldLimit), Generation: f.spec.Pool.Generation,
		})
	}
	return all
}
