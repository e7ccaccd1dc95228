package cdi

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"unsafe"
)

// Limits for the headers of a library. Driver libraries have about 10 program headers and 30 dynamic entries.
const (
	maxProgs   = 256
	maxDynamic = 4096
)

var (
	errNotELF = errors.New("not an ELF file")
	// errOtherMachine is returned for a library of another architecture, or a 32-bit one.
	errOtherMachine = errors.New("ELF file of another machine")
)

// readELF returns the SONAME of a library, "" if it has none, and its machine. size is the file size in bytes. Like the
// loader, it finds the dynamic section by the program headers. debug/elf uses the section headers, and allocates as
// much memory as they declare (docs/decisions/0016).
func readELF(file io.ReaderAt, size int64) (soname string, machine elf.Machine, err error) {
	var header elf.Header64
	if err := readStruct(file, 0, &header); err != nil {
		return "", 0, errNotELF
	}
	ident := header.Ident
	if string(ident[:4]) != elf.ELFMAG {
		return "", 0, errNotELF
	}
	if elf.Class(ident[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(ident[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return "", 0, errOtherMachine
	}
	if header.Phnum > maxProgs || uintptr(header.Phentsize) != unsafe.Sizeof(elf.Prog64{}) {
		return "", 0, errors.New("invalid ELF program headers")
	}
	progs := make([]elf.Prog64, header.Phnum)
	if err := readStruct(file, header.Phoff, progs); err != nil {
		return "", 0, fmt.Errorf("reading ELF program headers: %w", err)
	}
	if err := checkComplete(uint64(size), header, progs); err != nil {
		return "", 0, err
	}
	soname, err = readSONAME(file, progs)
	return soname, elf.Machine(header.Machine), err
}

// readStruct reads a fixed-size value, or a slice of them, at an offset.
func readStruct(file io.ReaderAt, offset uint64, data any) error {
	raw := make([]byte, binary.Size(data))
	if _, err := file.ReadAt(raw, int64(offset)); err != nil {
		return err
	}
	_, err := binary.Decode(raw, binary.LittleEndian, data)
	return err
}

// checkComplete returns an error if the file is shorter than its headers declare, such as during a copy.
func checkComplete(size uint64, header elf.Header64, progs []elf.Prog64) error {
	within := func(offset, length uint64) bool { return offset <= size && length <= size-offset }
	complete := within(header.Shoff, uint64(header.Shnum)*uint64(header.Shentsize))
	for _, p := range progs {
		complete = complete && within(p.Off, p.Filesz)
	}
	if !complete {
		return errors.New("truncated file")
	}
	return nil
}

// readSONAME returns the SONAME from the dynamic section; "" if there is none, or if it is too long for a file name.
func readSONAME(file io.ReaderAt, progs []elf.Prog64) (string, error) {
	at := slices.IndexFunc(progs, func(p elf.Prog64) bool { return elf.ProgType(p.Type) == elf.PT_DYNAMIC })
	if at < 0 {
		return "", nil
	}
	entries := make([]elf.Dyn64, min(maxDynamic, progs[at].Filesz/uint64(unsafe.Sizeof(elf.Dyn64{}))))
	if err := readStruct(file, progs[at].Off, entries); err != nil {
		return "", fmt.Errorf("reading ELF dynamic entries: %w", err)
	}
	values := map[elf.DynTag]uint64{}
	for _, e := range entries {
		values[elf.DynTag(e.Tag)] = e.Val
	}
	name, ok := values[elf.DT_SONAME]
	if !ok {
		return "", nil
	}
	offset, err := fileOffset(progs, values[elf.DT_STRTAB])
	if err != nil {
		return "", err
	}
	text := make([]byte, maxName+1)
	// A short read is not an error: the name may end close to the end of the file.
	n, _ := file.ReadAt(text, int64(offset+name))
	if end := bytes.IndexByte(text[:n], 0); end >= 0 {
		return string(text[:end]), nil
	}
	return "", nil
}

// fileOffset returns the file offset of a virtual address.
func fileOffset(progs []elf.Prog64, address uint64) (uint64, error) {
	for _, p := range progs {
		if elf.ProgType(p.Type) == elf.PT_LOAD && p.Vaddr <= address && address-p.Vaddr < p.Filesz {
			return p.Off + address - p.Vaddr, nil
		}
	}
	return 0, errors.New("ELF string table is not in the file")
}
