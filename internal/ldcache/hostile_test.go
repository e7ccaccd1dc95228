package ldcache

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"
)

// within fails the test when do has not returned after a while. What is tested takes a fraction of
// that, and took many times as long.
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
		t.Fatal("it has not returned")
	}
}

// header is that of a cache with a number of entries, and with an extension at an offset.
func header(entries, extension uint32) []byte {
	data := order.AppendUint32([]byte(magic), entries)
	data = append(order.AppendUint32(data, 0), endianness, 0, 0, 0)
	return append(order.AppendUint32(data, extension), make([]byte, 12)...)
}

// unterminatedEntries has entries whose strings all begin in a text that does not end.
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

// unterminatedNames has an extension of that kind.
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
				t.Fatalf("the file has %d bytes", len(data))
			}
			within(t, 10*time.Second, func() {
				for range 10 {
					if _, err := Parse(data); !errors.Is(err, errMalformed) {
						t.Errorf("error %v", err)
					}
				}
			})
		})
	}
}

// crowded is a cache with as many libraries as fit, whose names a function gives.
func crowded(name func(i int) string) []byte {
	c := &Cache{}
	for i := range MaxSize / (entrySize + 32) {
		key := name(i)
		c.entries = append(c.entries, entry{flags: ownFlags, key: key, value: key})
	}
	return c.Bytes()
}

// numbers is a cache of names with numbers that are long to compare.
func numbers() []byte {
	c := &Cache{}
	for i := range MaxSize/(maxString+2*entrySize) - 1 {
		name := fmt.Sprintf("libnvidia-%0*d", maxString-len("libnvidia-"), i)
		c.entries = append(c.entries, entry{flags: ownFlags, key: name})
	}
	return c.Bytes()
}

// A driver has some hundred libraries, and all are put into the cache. Here are more, so that a
// pass over the cache for each of them takes minutes.
func TestPutIntoACrowdedCache(t *testing.T) {
	for name, data := range map[string][]byte{
		"names that differ":        crowded(func(i int) string { return fmt.Sprintf("lib%07d.so", i) }),
		"names like a driver's":    crowded(func(i int) string { return fmt.Sprintf("libnvidia-%d.so.1", i%200) }),
		"all others come before":   crowded(func(int) string { return "zzzzzzzzzzzzzzz" }),
		"one name":                 crowded(func(int) string { return "libnvidia-7.so.1" }),
		"names of nothing":         crowded(func(int) string { return "" }),
		"numbers of many digits":   numbers(),
		"a beginning of all names": crowded(func(int) string { return "libnvidia-" }),
	} {
		t.Run(name, func(t *testing.T) {
			if len(data) > MaxSize {
				t.Fatalf("the file has %d bytes", len(data))
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
						t.Errorf("%s is there %d times", library, times[library])
					}
				}
				c.Bytes()
			})
		})
	}
}
