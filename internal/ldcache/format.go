package ldcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The file format, from glibc's sysdeps/generic/dl-cache.h. Numbers are in native byte order, which is little-endian on
// all architectures with NVIDIA drivers.
const (
	magic         = "glibc-ld.so.cache1.1"
	headerSize    = 48 // magic, nlibs, len_strings, flags, padding, extension_offset, unused
	entrySize     = 24 // flags, key, value, osversion, hwcap
	littleEndian  = 2  // in the flags of the header
	unknownEndian = 0

	// Before glibc 2.32, ldconfig wrote a cache in the format of glibc 2.1 in front of the new one.
	oldMagic      = "ld.so-1.7.0"
	oldHeaderSize = 16
	oldEntrySize  = 12

	extensionMagic   = 0xeaa42174
	extensionHeader  = 8  // magic, count
	extensionSection = 16 // tag, flags, offset, size
	tagHwcaps        = 1  // offsets of the names of glibc-hwcaps subdirectories
)

var order = binary.LittleEndian

// errMalformed is returned for a file that ldconfig cannot have written.
var errMalformed = errors.New("malformed cache")

// Parse decodes a cache.
func Parse(data []byte) (*Cache, error) {
	if len(data) > MaxSize {
		return nil, fmt.Errorf("larger than %d bytes", MaxSize)
	}
	p := &parser{file: data, cache: data, text: string(data)}
	if err := p.skipOld(); err != nil {
		return nil, err
	}
	if len(p.cache) < headerSize || !strings.HasPrefix(p.text, magic) {
		return nil, errMalformed
	}
	if flags := p.cache[28] & 3; flags != littleEndian && flags != unknownEndian {
		return nil, fmt.Errorf("%w: big-endian", errMalformed)
	}
	count := uint64(order.Uint32(p.cache[20:]))
	if count > uint64(len(p.cache)-headerSize)/entrySize {
		return nil, errMalformed
	}
	c := &Cache{entries: make([]entry, count)}
	for i := range c.entries {
		raw := p.cache[headerSize+i*entrySize:]
		c.entries[i] = entry{
			flags:     order.Uint32(raw),
			key:       p.string(order.Uint32(raw[4:])),
			value:     p.string(order.Uint32(raw[8:])),
			osVersion: order.Uint32(raw[12:]),
			hwcap:     order.Uint64(raw[16:]),
		}
	}
	for _, offset := range p.hwcaps(order.Uint32(p.cache[32:])) {
		c.hwcaps = append(c.hwcaps, p.string(offset))
	}
	if p.failed {
		return nil, errMalformed
	}
	return c, nil
}

// parser parses a cache. The results of its methods are invalid if failed is set.
type parser struct {
	file   []byte
	cache  []byte // file without the cache for glibc 2.1
	text   string // same content as cache; all strings are substrings of it
	size   int    // total size of the strings
	failed bool
}

func (p *parser) skipOld() error {
	if !strings.HasPrefix(p.text, oldMagic) {
		return nil
	}
	if len(p.file) < oldHeaderSize {
		return errMalformed
	}
	size := oldHeaderSize + uint64(order.Uint32(p.file[12:]))*oldEntrySize
	size = (size + 7) &^ 7 // alignment of an entry
	if size > uint64(len(p.file)) {
		return errMalformed
	}
	p.cache = p.file[size:]
	p.text = p.text[size:]
	return nil
}

// maxString is the maximum length of a string, which is a path or an element of a path, in bytes.
const maxString = 4096

// string returns the string at an offset. It bounds the total size of the strings by MaxSize, because strings may
// overlap.
func (p *parser) string(offset uint32) string {
	if p.failed || uint64(offset) >= uint64(len(p.text)) {
		p.failed = true
		return ""
	}
	text := p.text[offset:]
	text = text[:min(len(text), maxString+1)]
	end := strings.IndexByte(text, 0)
	p.size += end + 1
	if p.failed = end < 0 || p.size > MaxSize; p.failed {
		return ""
	}
	return text[:end]
}

// hwcaps returns the offsets of the hwcaps names in the extension at an offset, if there is one. It ignores other
// sections, such as the generator.
func (p *parser) hwcaps(offset uint32) []uint32 {
	if offset == 0 {
		return nil
	}
	head := p.part(uint64(offset), extensionHeader)
	if p.failed || order.Uint32(head) != extensionMagic {
		p.failed = true
		return nil
	}
	sections := p.part(uint64(offset)+extensionHeader, uint64(order.Uint32(head[4:]))*extensionSection)
	for section := range slices.Chunk(sections, extensionSection) {
		if order.Uint32(section) != tagHwcaps {
			continue
		}
		names := p.part(uint64(order.Uint32(section[8:])), uint64(order.Uint32(section[12:])))
		offsets := make([]uint32, len(names)/4)
		for i := range offsets {
			offsets[i] = order.Uint32(names[i*4:])
		}
		return offsets
	}
	return nil
}

// part returns a part of the file. Offsets of extensions are relative to the file, offsets of strings to the cache.
func (p *parser) part(offset, size uint64) []byte {
	if offset+size > uint64(len(p.file)) {
		p.failed = true
		return nil
	}
	return p.file[offset : offset+size]
}

// Bytes encodes the cache in the new format, which all versions of glibc after 2.1 read.
func (c *Cache) Bytes() []byte {
	table := newStringTable(headerSize + len(c.entries)*entrySize)
	var entries, names []byte
	for _, e := range c.entries {
		entries = order.AppendUint32(entries, e.flags)
		entries = order.AppendUint32(entries, table.add(e.key))
		entries = order.AppendUint32(entries, table.add(e.value))
		entries = order.AppendUint32(entries, e.osVersion)
		entries = order.AppendUint64(entries, e.hwcap)
	}
	for _, name := range c.hwcaps {
		names = order.AppendUint32(names, table.add(name))
	}
	table.align()

	data := append([]byte(nil), magic...)
	data = order.AppendUint32(data, uint32(len(c.entries)))
	data = order.AppendUint32(data, uint32(len(table.text)))
	data = append(data, littleEndian, 0, 0, 0)
	if len(names) == 0 {
		return slices.Concat(data, make([]byte, 16), entries, table.text)
	}
	extension := uint32(headerSize + len(entries) + len(table.text))
	data = order.AppendUint32(data, extension)
	data = slices.Concat(data, make([]byte, 12), entries, table.text)
	for _, n := range []uint32{
		extensionMagic, 1,
		tagHwcaps, 0, extension + extensionHeader + extensionSection, uint32(len(names)),
	} {
		data = order.AppendUint32(data, n)
	}
	return append(data, names...)
}

// stringTable is a table of unique strings.
type stringTable struct {
	start   int // offset of the table in the file
	text    []byte
	offsets map[string]uint32
}

func newStringTable(start int) *stringTable {
	return &stringTable{start: start, offsets: map[string]uint32{}}
}

func (t *stringTable) add(s string) uint32 {
	if offset, found := t.offsets[s]; found {
		return offset
	}
	offset := uint32(t.start + len(t.text))
	t.offsets[s] = offset
	t.text = append(append(t.text, s...), 0)
	return offset
}

// align pads the table so that 32-bit numbers can follow it.
func (t *stringTable) align() {
	for len(t.text)%4 != 0 {
		t.text = append(t.text, 0)
	}
}
