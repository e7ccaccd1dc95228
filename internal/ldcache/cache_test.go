package ldcache

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const libraryDir = "/usr/lib/x86_64-linux-gnu"

// ldconfigCaches returns caches written by ldconfig, with the libraries of this machine and of a temporary directory,
// which contains libcuda for all CPUs and for specific CPU features. current is in the current format, compat in the
// format before glibc 2.32.
func ldconfigCaches(t testing.TB) (current, compat string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"libcuda.so.1", "glibc-hwcaps/x86-64-v2/libcuda.so.1", "glibc-hwcaps/x86-64-v3/libother.so.1"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		run(t, "cc", "-shared", "-nostdlib", "-Wl,-soname,"+filepath.Base(name), "-x", "c", "/dev/null", "-o", file)
	}
	conf := filepath.Join(dir, "conf")
	if err := os.WriteFile(conf, []byte(dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	current, compat = filepath.Join(dir, "current"), filepath.Join(dir, "compat")
	run(t, "/sbin/ldconfig", "-X", "-c", "new", "-f", conf, "-C", current)
	run(t, "/sbin/ldconfig", "-X", "-c", "compat", "-f", conf, "-C", compat)
	return current, compat
}

// printed returns the lines that ldconfig -p prints, one per library.
func printed(t *testing.T, cache string) []string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(run(t, "/sbin/ldconfig", "-p", "-C", cache)) {
		if strings.HasPrefix(line, "\t") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func run(t testing.TB, command string, args ...string) string {
	t.Helper()
	cmd := exec.Command(command, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, &stderr)
	}
	return string(out)
}

func parse(t *testing.T, file string) *Cache {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestInteroperatesWithLdconfig(t *testing.T) {
	current, compat := ldconfigCaches(t)
	// ldconfig 2.36 prints wrong hwcaps names for the compat format.
	want := printed(t, current)
	for _, file := range []string{current, compat} {
		c := parse(t, file)
		if !slices.IsSortedFunc(c.entries, func(a, b entry) int { return compare(b.key, a.key) }) {
			t.Errorf("%s: the order of ldconfig differs from compare", file)
		}
		if err := os.WriteFile(file, c.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := printed(t, file); !slices.Equal(got, want) {
			t.Errorf("%s: ldconfig prints\n%s\nwant\n%s", file, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if again := parse(t, file); !reflect.DeepEqual(again, c) {
			t.Errorf("%s: the cache differs after encoding and parsing", file)
		}
	}
}

func TestPutReplacesOnlySameName(t *testing.T) {
	file, _ := ldconfigCaches(t)
	var want []string
	for _, line := range printed(t, file) {
		if !strings.HasPrefix(line, "libcuda.so.1 ") {
			want = append(want, line)
		}
	}
	if before := len(printed(t, file)); before != len(want)+2 {
		t.Fatalf("ldconfig's cache has %d libraries, %d of them not libcuda", before, len(want))
	}
	c := parse(t, file)
	for _, name := range []string{"libcuda.so.1", "libaaa.so.1", "libzzz.so.10", "libzzz.so.9", "libcuda.so.1"} {
		path := libraryDir + "/" + name
		// Only the first Put of libcuda replaces another path. At that time, want lacks the new line.
		if replaced := c.Put(path); replaced != (name == "libcuda.so.1" && len(c.entries) == len(want)+1) {
			t.Errorf("Put(%s) = %t", path, replaced)
		}
		if line := fmt.Sprintf("%s (libc6,x86-64) => %s", name, path); !slices.Contains(want, line) {
			want = append(want, line)
		}
	}
	slices.SortStableFunc(want, func(a, b string) int { return compare(strings.Fields(b)[0], strings.Fields(a)[0]) })
	if err := os.WriteFile(file, c.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := printed(t, file); !slices.Equal(got, want) {
		t.Errorf("ldconfig prints\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestPutIntoEmptyCache(t *testing.T) {
	var c Cache
	c.Put(libraryDir + "/libcuda.so.1")
	file := filepath.Join(t.TempDir(), "cache")
	if err := os.WriteFile(file, c.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{"libcuda.so.1 (libc6,x86-64) => " + libraryDir + "/libcuda.so.1"}
	if got := printed(t, file); !slices.Equal(got, want) {
		t.Errorf("ldconfig prints %q, want %q", got, want)
	}
}

// A name is greater than its prefixes, a digit is greater than any other character, and digits compare as numbers.
func TestCompare(t *testing.T) {
	for _, tc := range []struct {
		less, greater string
	}{
		{"libc.so.6", "libcuda.so.1"},
		{"libz.so.9", "libz.so.10"},
		{"libz.so", "libz.so.1"},
		{"libz.so.1", "libz1.so"},
		{"libz.so.4294967295", "libz.so.1"}, // the number is -1 in a C int
	} {
		if compare(tc.less, tc.greater) >= 0 || compare(tc.greater, tc.less) <= 0 {
			t.Errorf("%s is not less than %s", tc.less, tc.greater)
		}
	}
}

// Strings may overlap, so those of a small file can exceed MaxSize in total.
func TestStringsAreBounded(t *testing.T) {
	const length, count = maxString, 4000
	c := Cache{entries: []entry{{key: strings.Repeat("a", length)}}}
	for range count {
		c.entries = append(c.entries, entry{})
	}
	data := c.Bytes()
	start := order.Uint32(data[headerSize+4:])
	for i := range count {
		order.PutUint32(data[headerSize+i*entrySize+4:], start+uint32(i))
	}
	if len(data) > MaxSize {
		t.Fatalf("the file has %d bytes", len(data))
	}
	if _, err := Parse(data); !errors.Is(err, errMalformed) {
		t.Errorf("got error %v, want %v", err, errMalformed)
	}
	for length, fits := range map[int]bool{maxString: true, maxString + 1: false} {
		_, err := Parse((&Cache{entries: []entry{{key: strings.Repeat("a", length)}}}).Bytes())
		if (err == nil) != fits {
			t.Errorf("string of %d bytes: got error %v", length, err)
		}
	}
}

// sample returns a small cache that uses all features.
func sample() *Cache {
	return &Cache{
		entries: []entry{
			{flags: nativeFlags, key: "libother.so.1", value: "/opt/glibc-hwcaps/x86-64-v3/libother.so.1", hwcap: 1 << 62},
			{flags: 3, key: "libcuda.so.1", value: "/usr/lib32/libcuda.so.1", osVersion: 1},
			{flags: nativeFlags, key: "libcuda.so.1", value: "/opt/libcuda.so.1"},
		},
		hwcaps: []string{"x86-64-v3"},
	}
}

func FuzzParse(f *testing.F) {
	whole := sample().Bytes()
	old := slices.Concat([]byte(oldMagic), []byte{0, 1, 0, 0, 0}, make([]byte, 16))
	f.Add(whole)
	f.Add((&Cache{}).Bytes())
	f.Add(append(old, (&Cache{entries: sample().entries}).Bytes()...))
	f.Add([]byte(nil))
	f.Add(unterminatedEntries(1 << 10))
	f.Add(unterminatedNames(1 << 10))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			return
		}
		written := c.Bytes()
		// The strings are bounded by MaxSize, and the entries do not become larger.
		if len(written) > MaxSize+2*len(data)+headerSize {
			t.Errorf("%d bytes were encoded as %d", len(data), len(written))
		}
		again, err := Parse(written)
		if err != nil && len(written) <= MaxSize {
			t.Fatalf("parsing the encoded cache: %v", err)
		}
		if err == nil && !reflect.DeepEqual(c.entries, again.entries) {
			t.Error("the cache differs after encoding and parsing")
		}
		c.Put("/usr/lib64/libcuda.so.1")
		if got := c.entries; slices.IndexFunc(got, func(e entry) bool { return e.key == "libcuda.so.1" && e.flags == nativeFlags }) < 0 {
			t.Error("the cache lacks the library after Put")
		}
		if !bytes.HasPrefix(c.Bytes(), []byte(magic)) {
			t.Error("the encoded cache has no magic number")
		}
	})
}
