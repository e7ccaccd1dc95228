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

// noteSection is the section with the driver branches that a libcuda supports. It has existed since driver 575.
const noteSection = ".note.cuda.fwd_compatibility"

// Limits in bytes: of all reads from a libcuda, and of its note. The file is from the image, so it is not trusted.
const (
	maxELF  = 1 << 20
	maxNote = 4 << 10
)

// supportsDriver reports whether a libcuda with the given version is newer than the driver and supports it. A libcuda
// without a note must be of a newer branch.
func supportsDriver(libcuda io.ReaderAt, libcudaVersion, driver version) bool {
	branches, found, err := readNote(&limitedReaderAt{libcuda, maxELF})
	switch {
	case err != nil:
		return false
	case found:
		return slices.Contains(branches, driver[0]) && slices.Compare(libcudaVersion, driver) > 0
	}
	return libcudaVersion[0] > driver[0]
}

// readNote returns the driver branches that a libcuda supports, and reports whether it has a note.
func readNote(libcuda io.ReaderAt) (branches []uint64, found bool, err error) {
	if err := checkSectionNames(libcuda); err != nil {
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
		return nil, false, errTooLarge
	}
	data, err := section.Data()
	if err != nil {
		return nil, false, err
	}
	// A note consists of a header, a name and a description (elf(5)). The description is a JSON object.
	data = data[max(0, bytes.IndexByte(data, '{')):]
	var note struct{ Driver []uint64 }
	err = json.NewDecoder(bytes.NewReader(data)).Decode(&note)
	return note.Driver, true, err
}

// checkSectionNames returns an error if the section names are compressed, because debug/elf decompresses them, to any
// size, when it opens the file. Those of NVIDIA's libcuda are not compressed. It also returns an error unless the file
// is a 64-bit little-endian ELF file.
func checkSectionNames(libcuda io.ReaderAt) error {
	var header elf.Header64
	if err := readStruct(libcuda, 0, &header); err != nil {
		return err
	}
	if elf.Class(header.Ident[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(header.Ident[elf.EI_DATA]) != elf.ELFDATA2LSB ||
		header.Shstrndx >= uint16(elf.SHN_LORESERVE) {
		return errors.New("not a 64-bit little-endian ELF file")
	}
	var names elf.Section64
	if err := readStruct(libcuda, header.Shoff+uint64(header.Shstrndx)*uint64(header.Shentsize), &names); err != nil {
		return err
	}
	if elf.SectionFlag(names.Flags)&elf.SHF_COMPRESSED != 0 {
		return errTooLarge
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

var errTooLarge = errors.New("libcuda or its note exceeds the size limit")

// limitedReaderAt limits the total number of bytes read. debug/elf trusts the sizes in a file.
type limitedReaderAt struct {
	io.ReaderAt
	left int
}

func (r *limitedReaderAt) ReadAt(data []byte, offset int64) (int, error) {
	if r.left -= len(data); r.left < 0 {
		return 0, errTooLarge
	}
	return r.ReaderAt.ReadAt(data, offset)
}
