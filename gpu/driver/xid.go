package driver

import (
	"slices"
)

// xids are those since the last round. A GPU can have the same XID thousands of times a second, and
// each report makes the agent write to its log: the first is reported at once, its repetitions as
// one with the next round.
type xids []XID

// add takes an XID and returns whether it is the first of its kind.
func (x *xids) add(xid XID) bool {
	i := slices.IndexFunc(*x, func(o XID) bool { return o.GPU == xid.GPU && o.Code == xid.Code && slices.Equal(o.MIG, xid.MIG) })
	if i < 0 {
		xid.Times = 0
		*x = append(*x, xid)
		return true
	}
	(*x)[i].Times++
	return false
}

// repeated returns the XIDs that were repeated, and forgets all.
func (x *xids) repeated() []XID {
	all := slices.DeleteFunc(*x, func(xid XID) bool { return xid.Times == 0 })
	*x = nil
	return all
}
