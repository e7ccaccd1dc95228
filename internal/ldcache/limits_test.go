package ldcache

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"
)

// within fails the test if do does not return within limit. The limits are much longer than linear algorithms need and
// much shorter than quadratic ones.
func within(t *testing.T, limit time.Duration, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("not done within %s", limit)
	}
}

// header returns the header of a cache with a number of entries and the offset of an extension.
func header(entries, extension uint32) []byte {
	data := order.AppendUint32([]byte(magic), entries)
	data = append(order.AppendUint32(data, 0), littleEndian, 0, 0, 0)
	return append(order.AppendUint32(data, extension), make([]byte, 12)...)
}

// unterminatedEntries returns a cache with entries whose strings are not terminated.
func unterminatedEntries(size int) []byte {
	count := uint32(size / 2 / entrySize)
	data := header(count, 0)
	for range count {
		data = order.AppendUint32(data, 1)
		data = order.AppendUint32(data, headerSize+count*entrySize)
		data = order.AppendUint32(data, headerSize+count*entrySize)
		data = append(data, make([]byte, 12)...)
	}
	return append(data, bytes.Repeat([]byte("a"), size-len(data))...)
}

// unterminatedNames returns a cache with an extension whose strings are not terminated.
func unterminatedNames(size int) []byte {
	count := uint32(size / 2 / 4)
	data := header(0, headerSize)
	for _, n := range []uint32{extensionMagic, 1, tagHwcaps, 0, headerSize + extensionHeader + extensionSection, count * 4} {
		data = order.AppendUint32(data, n)
	}
	text := uint32(len(data)) + count*4
	for range count {
		data = order.AppendUint32(data, text)
	}
	return append(data, bytes.Repeat([]byte("a"), size-len(data))...)
}

func TestParseTakesLinearTime(t *testing.T) {
	for name, data := range map[string][]byte{"entries": unterminatedEntries(MaxSize), "names": unterminatedNames(MaxSize)} {
		t.Run(name, func(t *testing.T) {
			if len(data) != MaxSize {
				t.Fatalf("the cache has %d bytes", len(data))
			}
			within(t, 10*time.Second, func() {
				for range 2 {
					if _, err := Parse(data); !errors.Is(err, errMalformed) {
						t.Errorf("got error %v, want %v", err, errMalformed)
					}
				}
			})
		})
	}
}

// fullCache returns a cache with about 75,000 libraries, which is smaller than MaxSize.
func fullCache(name func(i int) string) []byte {
	c := &Cache{}
	for i := range MaxSize / (entrySize + 32) {
		key := name(i)
		c.entries = append(c.entries, entry{flags: nativeFlags, key: key, value: key})
	}
	return c.Bytes()
}

// longNumbers returns a cache of names with long numbers, which are slow to compare.
func longNumbers() []byte {
	c := &Cache{}
	for i := range MaxSize/(maxString+2*entrySize) - 1 {
		name := fmt.Sprintf("libnvidia-%0*d", maxString-len("libnvidia-"), i)
		c.entries = append(c.entries, entry{flags: nativeFlags, key: name})
	}
	return c.Bytes()
}

// A driver has about a hundred libraries. This test adds many more, so that with the race detector, one pass over the
// cache per library would take more than a minute.
func TestPutIntoFullCache(t *testing.T) {
	for name, data := range map[string][]byte{
		"unique names":              fullCache(func(i int) string { return fmt.Sprintf("lib%07d.so", i) }),
		"names of driver libraries": fullCache(func(i int) string { return fmt.Sprintf("libnvidia-%d.so.1", i%200) }),
		"greatest name":             fullCache(func(int) string { return "zzzzzzzzzzzzzzz" }),
		"one name":                  fullCache(func(int) string { return "libnvidia-7.so.1" }),
		"empty names":               fullCache(func(int) string { return "" }),
		"long numbers":              longNumbers(),
		"common prefix":             fullCache(func(int) string { return "libnvidia-" }),
	} {
		t.Run(name, func(t *testing.T) {
			if len(data) > MaxSize {
				t.Fatalf("the cache has %d bytes", len(data))
			}
			var libraries []string
			for i := range 5000 {
				libraries = append(libraries, fmt.Sprintf("%s/libnvidia-%d.so.1", libraryDir, i))
			}
			within(t, 20*time.Second, func() {
				c, err := Parse(data)
				if err != nil {
					t.Error(err)
					return
				}
				c.Put(libraries...)
				times := map[string]int{}
				for _, e := range c.entries {
					times[e.value]++
				}
				for _, library := range libraries {
					if times[library] != 1 {
						t.Errorf("the cache has %s %d times", library, times[library])
					}
				}
				c.Bytes()
			})
		})
	}
}
