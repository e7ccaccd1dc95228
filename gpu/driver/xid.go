package driver

import (
	"slices"
)

// xids are the XIDs of the current probe cycle. A GPU can raise the same XID thousands of times per second, and the
// agent logs each report, so repetitions are aggregated into one report per cycle.
type xids []XID

// add records an XID and reports whether it is the first of its kind in this cycle.
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

// repeated returns the aggregated repetitions and resets x.
func (x *xids) repeated() []XID {
	all := slices.DeleteFunc(*x, func(xid XID) bool { return xid.Times == 0 })
	*x = nil
	return all
}
