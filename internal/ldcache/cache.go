package ldcache

import (
	"maps"
	"path"
	"runtime"
	"slices"
)

// MaxSize is the maximum size of a cache in bytes. The caches of images with thousands of libraries are about 100 KiB.
const MaxSize = 4 << 20

// nativeFlags are the flags of a 64-bit glibc library of this architecture: FLAG_ELF_LIBC6, and FLAG_X8664_LIB64 or
// FLAG_AARCH64_LIB64.
var nativeFlags = map[string]uint32{"amd64": 0x0303, "arm64": 0x0a03}[runtime.GOARCH]

// Cache is a decoded cache. The zero Cache is empty.
type Cache struct {
	entries []entry // in the loader's order, see compare
	hwcaps  []string
}

// entry is glibc's struct file_entry_new.
type entry struct {
	flags     uint32 // library type
	key       string // library name
	value     string // path
	osVersion uint32
	hwcap     uint64 // required CPU features, or an index into hwcaps
}

// Put adds libraries for 64-bit programs, given their paths. It removes all other 64-bit entries with their names,
// because the loader would prefer entries for specific CPU features regardless of the order. It reports whether it
// removed an entry with another path. One call takes a single pass over the cache for any number of files.
func (c *Cache) Put(files ...string) (replaced bool) {
	added := map[string]entry{}
	for _, file := range files {
		key := path.Base(file)
		added[key] = entry{flags: nativeFlags, key: key, value: file}
	}
	c.entries = slices.DeleteFunc(c.entries, func(e entry) bool {
		if e.flags != nativeFlags {
			return false
		}
		put, found := added[e.key]
		replaced = replaced || found && e.value != put.value
		return found
	})
	c.entries = merge(c.entries, slices.SortedFunc(maps.Values(added), func(a, b entry) int { return compare(b.key, a.key) }))
	return replaced
}

// merge merges two slices that are in the loader's order.
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

// compare is glibc's _dl_cache_libcmp, which compares digits in names as numbers. The cache is sorted in descending
// order.
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

// number parses the digits at the beginning of s. It overflows as the loader does.
func number(s string) (n int32, rest string) {
	for s != "" && isDigit(s[0]) {
		n = n*10 + int32(s[0]-'0')
		s = s[1:]
	}
	return n, s
}
