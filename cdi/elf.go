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

// The limits of what is read of a library. Those of drivers have some ten program headers and some
// thirty dynamic entries.
const (
	maxProgs   = 256
	maxDynamic = 4096
)

var (
	// errNotELF is returned for a file that is no ELF file.
	errNotELF = errors.New("not an ELF file")
	// errOtherMachine is returned for one that programs of this machine cannot load.
	errOtherMachine = errors.New("an ELF file of another machine")
)

// readELF returns the SONAME of a library of that size, empty for none, and the machine that it is for. It reads
// the file as the loader does, by its program headers. Package debug/elf reads all of the sections,
// too, and what it allocates for them is up to the file.
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
		return "", 0, fmt.Errorf("reading its ELF program headers: %w", err)
	}
	if err := checkWhole(uint64(size), header, progs); err != nil {
		return "", 0, err
	}
	soname, err = readSONAME(file, progs)
	return soname, elf.Machine(header.Machine), err
}

// readStruct reads what has a fixed size, or a slice of that, at an offset.
func readStruct(file io.ReaderAt, offset uint64, data any) error {
	raw := make([]byte, binary.Size(data))
	if _, err := file.ReadAt(raw, int64(offset)); err != nil {
		return err
	}
	_, err := binary.Decode(raw, binary.LittleEndian, data)
	return err
}

// checkWhole returns an error for a file that ends before what its headers describe, as one does
// that is being copied.
func checkWhole(size uint64, header elf.Header64, progs []elf.Prog64) error {
	within := func(offset, length uint64) bool { return offset <= size && length <= size-offset }
	whole := within(header.Shoff, uint64(header.Shnum)*uint64(header.Shentsize))
	for _, p := range progs {
		whole = whole && within(p.Off, p.Filesz)
	}
	if !whole {
		return errors.New("the file is truncated")
	}
	return nil
}

// readSONAME reads the SONAME that the dynamic entries name. One that is longer than a file name can
// be is none.
func readSONAME(file io.ReaderAt, progs []elf.Prog64) (string, error) {
	at := slices.IndexFunc(progs, func(p elf.Prog64) bool { return elf.ProgType(p.Type) == elf.PT_DYNAMIC })
	if at < 0 {
		return "", nil
	}
	entries := make([]elf.Dyn64, min(maxDynamic, progs[at].Filesz/uint64(unsafe.Sizeof(elf.Dyn64{}))))
	if err := readStruct(file, progs[at].Off, entries); err != nil {
		return "", fmt.Errorf("reading its dynamic entries: %w", err)
	}
	values := map[elf.DynTag]uint64{}
	for _, e := range entries {
		values[elf.DynTag(e.Tag)] = e.Val
	}
	name, has := values[elf.DT_SONAME]
	if !has {
		return "", nil
	}
	offset, err := fileOffset(progs, values[elf.DT_STRTAB])
	if err != nil {
		return "", err
	}
	text := make([]byte, maxName+1)
	n, _ := file.ReadAt(text, int64(offset+name)) // it may be the end of the file
	if end := bytes.IndexByte(text[:n], 0); end >= 0 {
		return string(text[:end]), nil
	}
	return "", nil
}

// fileOffset returns where in the file the loader finds what it has at an address.
func fileOffset(progs []elf.Prog64, address uint64) (uint64, error) {
	for _, p := range progs {
		if elf.ProgType(p.Type) == elf.PT_LOAD && p.Vaddr <= address && address-p.Vaddr < p.Filesz {
			return p.Off + address - p.Vaddr, nil
		}
	}
	return 0, errors.New("its ELF string table is not in the file")
}
