package allocator

import "slices"

// usage counts, by device, the parts that are available or may be held, so that the duration of a check depends on the
// number of devices, not of replicas.
type usage []load

// load counts the used parts of one GPU or MIG device.
type load struct {
	device Part
	whole  int // parts that are the whole device
	shares []classLoad
}

type classLoad struct {
	class Class
	parts int
	units uint64
}

// wholeDevice is the size of a device, in arbitrary units. The size of a share is rounded down, so that all shares of a
// device fit on it.
const wholeDevice uint64 = 1 << 62

func (s Share) units() uint64 { return wholeDevice / uint64(s.Count) }

// fits reports whether a part can be used in addition to the counted ones.
func (u usage) fits(p Part) bool {
	for i := range u {
		l := &u[i]
		if l.empty() || !l.device.touches(p) {
			continue
		}
		if p.Share.Count == 0 || l.whole > 0 || l.device != p.Device() || p.Extent == ExtentUnknown {
			return false
		}
		for _, c := range l.shares {
			if c.parts > 0 && (c.class != p.Share.Class || c.units+p.Share.units() > wholeDevice) {
				return false
			}
		}
	}
	return true
}

func (l *load) empty() bool {
	return l.whole == 0 && !slices.ContainsFunc(l.shares, func(c classLoad) bool { return c.parts > 0 })
}

func (u *usage) add(p Part)    { u.count(p, 1) }
func (u *usage) remove(p Part) { u.count(p, -1) }

func (u *usage) count(p Part, by int) {
	l := u.of(p.Device())
	if p.Share.Count == 0 {
		l.whole += by
		return
	}
	i := slices.IndexFunc(l.shares, func(c classLoad) bool { return c.class == p.Share.Class })
	if i < 0 {
		i, l.shares = len(l.shares), append(l.shares, classLoad{class: p.Share.Class})
	}
	c := &l.shares[i]
	c.parts += by
	if by > 0 {
		c.units += p.Share.units()
	} else {
		c.units -= p.Share.units()
	}
}

func (u *usage) of(device Part) *load {
	i := slices.IndexFunc(*u, func(l load) bool { return l.device == device })
	if i < 0 {
		i, *u = len(*u), append(*u, load{device: device})
	}
	return &(*u)[i]
}
