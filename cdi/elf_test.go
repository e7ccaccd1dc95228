package cdi

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Programs of a node read the same of its libraries.
func TestReadELFReadsWhatDebugELFReads(t *testing.T) {
	paths, err := filepath.Glob("/usr/lib/" + gnuMachine + "-linux-gnu/*.so*")
	if err != nil {
		t.Fatal(err)
	}
	same := 0
	for _, path := range paths {
		want, err := elf.Open(path)
		if err != nil {
			continue // a linker's script
		}
		sonames, err := want.DynString(elf.DT_SONAME)
		want.Close()
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		soname, machine, err := readELF(bytes.NewReader(data), int64(len(data)))
		if err != nil || machine != want.Machine || soname != strings.Join(sonames, "") {
			t.Errorf("%s: %q, %v, %v, want %q, %v", path, soname, machine, err, sonames, want.Machine)
		}
		same++
	}
	if same < 20 {
		t.Errorf("only %d libraries are here", same)
	}
}

// library is a small library with a SONAME.
func library(t testing.TB, soname string) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "lib.so")
	if out, err := exec.Command("cc", "-shared", "-nostdlib", "-Wl,-soname,"+soname, "-o", file, "-x", "c", "/dev/null").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The offsets of fields in the header of an ELF file, and in that of a section.
const (
	offShoff, offPhentsize, offPhnum, offShnum, offShstrndx = 0x28, 0x36, 0x38, 0x3c, 0x3e
	offFlags, offOffset, offSize                            = 8, 24, 32
)

// compressedNames is a library whose names of sections are 32 MiB of zeros, compressed.
func compressedNames(t *testing.T) []byte {
	t.Helper()
	const size = 32 << 20
	var packed bytes.Buffer
	order := binary.LittleEndian
	packed.Write(order.AppendUint64(order.AppendUint64(order.AppendUint64(nil, uint64(elf.COMPRESS_ZLIB)), size), 1))
	w := zlib.NewWriter(&packed)
	for range size >> 20 {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	data := library(t, "libx.so.1")
	names := order.Uint64(data[offShoff:]) + 64*uint64(order.Uint16(data[offShstrndx:]))
	order.PutUint64(data[names+offFlags:], uint64(elf.SHF_COMPRESSED))
	order.PutUint64(data[names+offOffset:], uint64(len(data)))
	order.PutUint64(data[names+offSize:], uint64(packed.Len()))
	return append(data, packed.Bytes()...)
}

// What a library says of its own size is not trusted.
func TestReadLibraryIsBounded(t *testing.T) {
	order := binary.LittleEndian
	for name, tc := range map[string]struct {
		data []byte
		size int64 // of the file, sparse; 0 for that of the data
	}{
		"compressed names of sections": {compressedNames(t), 0},
		"millions of sections": {func() []byte {
			data := library(t, "libx.so.1")
			order.PutUint16(data[offShnum:], 0)
			order.PutUint64(data[offShoff:], uint64(len(data)))
			section := make([]byte, 64)
			order.PutUint64(section[offSize:], 4<<20)
			return append(data, section...)
		}(), 1 << 40},
		"program headers of 64 KiB": {func() []byte {
			data := library(t, "libx.so.1")
			order.PutUint16(data[offPhnum:], 0x4000)
			order.PutUint16(data[offPhentsize:], 0x8000)
			return data
		}(), 1 << 40},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "libx.so.1.2")
			if err := os.WriteFile(file, tc.data, 0o600); err != nil {
				t.Fatal(err)
			}
			if tc.size > 0 {
				if err := os.Truncate(file, tc.size); err != nil {
					t.Fatal(err)
				}
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			library, err := readLibrary(host.NewRoot(dir), "/libx.so.1.2")
			runtime.ReadMemStats(&after)
			if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 1<<20 {
				t.Errorf("%d MiB are allocated for %+v, %v", allocated>>20, library, err)
			}
		})
	}
}

// A library that is copied only in part is not given to containers.
func TestReadELFRefusesPartsOfALibrary(t *testing.T) {
	whole := library(t, "libx.so.1")
	for size := 0; size < len(whole); size += 1 + size/16 {
		if soname, _, err := readELF(bytes.NewReader(whole[:size]), int64(size)); err == nil {
			t.Errorf("%d of %d bytes: %q", size, len(whole), soname)
		}
	}
}

func FuzzReadELF(f *testing.F) {
	f.Add(library(f, "libx.so.1"))
	f.Add(library(f, strings.Repeat("x", 300)))
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, data []byte) {
		soname, _, err := readELF(bytes.NewReader(data), int64(len(data)))
		if err == nil && (len(soname) > maxName || strings.Contains(soname, "\x00") || !bytes.Contains(data, []byte(soname))) {
			t.Errorf("SONAME %q", soname)
		}
	})
}
