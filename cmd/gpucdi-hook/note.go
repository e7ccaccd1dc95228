package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"slices"
)

// noteSection is where libcuda says on which drivers it works beside its own. Before driver 575
// it said nothing.
const noteSection = ".note.cuda.fwd_compatibility"

// What is read of a libcuda, and of its note, in bytes: the file is the image's.
const (
	maxELF  = 1 << 20
	maxNote = 4 << 10
)

// worksOn says whether a libcuda, whose version is given, is newer than a driver and works on it.
func worksOn(libcuda io.ReaderAt, its, driver version) bool {
	branches, told, err := readNote(&bounded{libcuda, maxELF})
	switch {
	case err != nil:
		return false
	case told:
		return slices.Contains(branches, driver[0]) && slices.Compare(its, driver) > 0
	}
	return its[0] > driver[0]
}

// readNote returns the branches of the driver that a libcuda works on, if it tells them.
func readNote(libcuda io.ReaderAt) (branches []uint64, told bool, err error) {
	if err := checkNames(libcuda); err != nil {
		return nil, false, err
	}
	image, err := elf.NewFile(libcuda)
	if err != nil {
		return nil, false, err
	}
	section := image.Section(noteSection)
	if section == nil {
		return nil, false, nil
	}
	if section.Size > maxNote {
		return nil, false, errTooMuch
	}
	data, err := section.Data()
	if err != nil {
		return nil, false, err
	}
	// A note is a header, a name and a description (elf(5)). The name is NVIDIA's, and the
	// description a JSON object.
	data = data[max(0, bytes.IndexByte(data, '{')):]
	var note struct{ Driver []uint64 }
	err = json.NewDecoder(bytes.NewReader(data)).Decode(&note)
	return note.Driver, true, err
}

// checkNames returns an error for a file whose names of sections are compressed, as in no libcuda: the
// ELF package expands them, to any size, when it opens the file.
func checkNames(libcuda io.ReaderAt) error {
	var header elf.Header64
	if err := readStruct(libcuda, 0, &header); err != nil {
		return err
	}
	if elf.Class(header.Ident[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(header.Ident[elf.EI_DATA]) != elf.ELFDATA2LSB ||
		header.Shstrndx >= uint16(elf.SHN_LORESERVE) {
		return errors.New("it is no libcuda of a 64-bit machine")
	}
	var names elf.Section64
	if err := readStruct(libcuda, header.Shoff+uint64(header.Shstrndx)*uint64(header.Shentsize), &names); err != nil {
		return err
	}
	if elf.SectionFlag(names.Flags)&elf.SHF_COMPRESSED != 0 {
		return errTooMuch
	}
	return nil
}

func readStruct(libcuda io.ReaderAt, offset uint64, data any) error {
	raw := make([]byte, binary.Size(data))
	if _, err := libcuda.ReadAt(raw, int64(offset)); err != nil {
		return err
	}
	_, err := binary.Decode(raw, binary.LittleEndian, data)
	return err
}

var errTooMuch = errors.New("it is larger than any libcuda needs")

// bounded lets only so many bytes be read. The ELF package believes the sizes in a file.
type bounded struct {
	io.ReaderAt
	left int
}

func (b *bounded) ReadAt(data []byte, offset int64) (int, error) {
	if b.left -= len(data); b.left < 0 {
		return 0, errTooMuch
	}
	return b.ReaderAt.ReadAt(data, offset)
}
