package ldcache

import (
	"maps"
	"path"
	"runtime"
	"slices"
)

// MaxSize bounds a cache in bytes. Those of images with thousands of libraries have some 100 KiB.
const MaxSize = 4 << 20

// ownFlags are those of a 64-bit library of this machine for glibc 2: FLAG_ELF_LIBC6, and
// FLAG_X8664_LIB64 or FLAG_AARCH64_LIB64.
var ownFlags = map[string]uint32{"amd64": 0x0303, "arm64": 0x0a03}[runtime.GOARCH]

// Cache is the content of a cache. The zero Cache has no libraries.
type Cache struct {
	entries []entry // in the loader's order, see compare
	hwcaps  []string
}

// entry is one library: glibc's struct file_entry_new.
type entry struct {
	flags     uint32 // for which loaders it is
	key       string // what it is looked up by
	value     string // its path
	osVersion uint32
	hwcap     uint64 // which processors it is for; may be an index into the hwcaps
}

// Put makes the libraries at files the only ones of their names for 64-bit programs. Others of
// those names have to go: one that is for certain processors would win, wherever it stands. It
// returns whether there were any elsewhere. All files in one call take one pass over the cache.
func (c *Cache) Put(files ...string) (replaced bool) {
	added := map[string]entry{}
	for _, file := range files {
		key := path.Base(file)
		added[key] = entry{flags: ownFlags, key: key, value: file}
	}
	c.entries = slices.DeleteFunc(c.entries, func(e entry) bool {
		if e.flags != ownFlags {
			return false
		}
		own, same := added[e.key]
		replaced = replaced || same && e.value != own.value
		return same
	})
	c.entries = merge(c.entries, slices.SortedFunc(maps.Values(added), func(a, b entry) int { return compare(b.key, a.key) }))
	return replaced
}

// merge adds entries to others. Both are in the loader's order.
func merge(entries, added []entry) []entry {
	all := make([]entry, 0, len(entries)+len(added))
	for _, e := range entries {
		for len(added) > 0 && compare(e.key, added[0].key) <= 0 {
			all, added = append(all, added[0]), added[1:]
		}
		all = append(all, e)
	}
	return append(all, added...)
}

// compare is the order of the loader's binary search, whose greatest name is first: numbers
// within names compare by what they count (glibc, _dl_cache_libcmp).
func compare(a, b string) int {
	for a != "" && b != "" {
		switch digitA, digitB := isDigit(a[0]), isDigit(b[0]); {
		case digitA && digitB:
			var numberA, numberB int32
			numberA, a = number(a)
			numberB, b = number(b)
			if numberA != numberB {
				return int(numberA) - int(numberB)
			}
		case digitA:
			return 1
		case digitB:
			return -1
		case a[0] != b[0]:
			return int(a[0]) - int(b[0])
		default:
			a, b = a[1:], b[1:]
		}
	}
	return len(a) - len(b)
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// number reads the digits at the beginning of s. One that is too great for an int wraps around,
// as it does in the loader.
func number(s string) (n int32, rest string) {
	for s != "" && isDigit(s[0]) {
		n = n*10 + int32(s[0]-'0')
		s = s[1:]
	}
	return n, s
}
