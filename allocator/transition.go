package allocator

// Transition is an entry whose state, fault or reason to drain changed.
type Transition struct {
	Entry       // as it is now; as it was if it is Gone
	From  State // empty if it is new
	Gone  bool  // not listed any more
}

// Transitions returns what changed from one ledger to another, in the order of
// the keys.
func Transitions(before, after Ledger) []Transition {
	var changed []Transition
	was, is := before.entries, after.entries
	for len(was) > 0 || len(is) > 0 {
		switch {
		case len(is) == 0 || len(was) > 0 && was[0].compare(is[0].Key) < 0:
			changed = append(changed, Transition{Entry: was[0], From: was[0].State, Gone: true})
			was = was[1:]
		case len(was) == 0 || was[0].compare(is[0].Key) > 0:
			changed = append(changed, Transition{Entry: is[0]})
			is = is[1:]
		default:
			if was[0].State != is[0].State || was[0].Fault != is[0].Fault || was[0].Drain.Reason != is[0].Drain.Reason {
				changed = append(changed, Transition{Entry: is[0], From: was[0].State})
			}
			was, is = was[1:], is[1:]
		}
	}
	return changed
}
