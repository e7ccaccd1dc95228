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

func TestReadELFMatchesDebugELF(t *testing.T) {
	paths, err := filepath.Glob("/usr/lib/" + gnuMachine + "-linux-gnu/*.so*")
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		want, err := elf.NewFile(file)
		if err != nil {
			continue // a linker script
		}
		sonames, err := want.DynString(elf.DT_SONAME)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		info, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		soname, machine, err := readELF(file, info.Size())
		if err != nil || machine != want.Machine || soname != strings.Join(sonames, "") {
			t.Errorf("%s: got %q, %v, %v, want %q, %v", path, soname, machine, err, sonames, want.Machine)
		}
		compared++
	}
	if compared < 20 {
		t.Errorf("compared %d libraries, want at least 20", compared)
	}
}

// library builds a minimal shared library.
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

// Offsets of fields in the ELF header, and in section headers.
const (
	offShoff, offPhentsize, offPhnum, offShnum, offShstrndx = 0x28, 0x36, 0x38, 0x3c, 0x3e
	offFlags, offOffset, offSize                            = 8, 24, 32
)

// compressedNames returns a library whose section names are 32 MiB of zeros, compressed.
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

// Sizes declared by a library are not trusted.
func TestReadLibraryLimitsMemory(t *testing.T) {
	order := binary.LittleEndian
	for name, tc := range map[string]struct {
		data []byte
		size int64 // of the sparse file; 0 for len(data)
	}{
		"compressed section names": {compressedNames(t), 0},
		"millions of sections": {func() []byte {
			data := library(t, "libx.so.1")
			order.PutUint16(data[offShnum:], 0)
			order.PutUint64(data[offShoff:], uint64(len(data)))
			section := make([]byte, 64)
			order.PutUint64(section[offSize:], 4<<20)
			return append(data, section...)
		}(), 1 << 40},
		"512 MiB of program headers": {func() []byte {
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
			got, err := readLibrary(host.NewRoot(dir), "/libx.so.1.2")
			runtime.ReadMemStats(&after)
			if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 1<<20 {
				t.Errorf("allocated %d KiB for %+v, %v", allocated>>10, got, err)
			}
		})
	}
}

func TestReadELFRejectsTruncatedLibrary(t *testing.T) {
	complete := library(t, "libx.so.1")
	for size := 0; size < len(complete); size += 1 + size/16 {
		if soname, _, err := readELF(bytes.NewReader(complete[:size]), int64(size)); err == nil {
			t.Errorf("accepted %d of %d bytes, SONAME %q", size, len(complete), soname)
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
			t.Errorf("got SONAME %q", soname)
		}
	})
}
