package ldcache

import (
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

// Put makes the library at file the only one of its name for 64-bit programs. Others of that
// name have to go: one that is for certain processors would win, wherever it stands. It says
// whether there were any elsewhere.
func (c *Cache) Put(file string) (replaced bool) {
	added := entry{flags: ownFlags, key: path.Base(file), value: file}
	c.entries = slices.DeleteFunc(c.entries, func(e entry) bool {
		same := e.flags == added.flags && e.key == added.key
		replaced = replaced || same && e.value != added.value
		return same
	})
	at := slices.IndexFunc(c.entries, func(e entry) bool { return compare(e.key, added.key) <= 0 })
	if at < 0 {
		at = len(c.entries)
	}
	c.entries = slices.Insert(c.entries, at, added)
	return replaced
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
