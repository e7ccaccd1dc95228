package main

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// compressedNames returns a library whose section names are 64 MiB of zeros, compressed to less than maxELF.
func compressedNames(t *testing.T) []byte {
	t.Helper()
	const size = 64 << 20
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
	file := filepath.Join(t.TempDir(), "libcuda.so")
	if out, err := exec.Command("cc", "-shared", "-nostdlib", "-o", file, "-x", "c", "/dev/null").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const shoff, shstrndx, flags, offset, length = 0x28, 0x3e, 8, 24, 32 // offsets of fields in the ELF and section headers
	names := order.Uint64(data[shoff:]) + 64*uint64(order.Uint16(data[shstrndx:]))
	order.PutUint64(data[names+flags:], uint64(elf.SHF_COMPRESSED))
	order.PutUint64(data[names+offset:], uint64(len(data)))
	order.PutUint64(data[names+length:], uint64(packed.Len()))
	return append(data, packed.Bytes()...)
}

// libcuda is from the image, so it is not trusted: decompressing a section must not exhaust the memory.
func TestCompressedSectionNames(t *testing.T) {
	data := compressedNames(t)
	if len(data) > maxELF {
		t.Fatalf("test file has %d bytes, more than maxELF", len(data))
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	supported := supportsDriver(bytes.NewReader(data), version{580}, version{570})
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; supported || allocated > 4<<20 {
		t.Errorf("got supported %t, allocated %d MiB", supported, allocated>>20)
	}
}
