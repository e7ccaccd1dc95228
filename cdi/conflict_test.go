package cdi_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/cdi"
)

// conflicting is a foreign spec that defines a device of inventory.
const conflicting = "cdiVersion: 0.5.0\nkind: gpucdi.dev/gpu\ndevices: [{name: GPU-a, containerEdits: {env: [A=b]}}]\n"

// utf16Of encodes text as UTF-16 with a byte order mark.
func utf16Of(text string) string {
	encoded := []byte{0xff, 0xfe}
	for _, unit := range utf16.Encode([]rune(text)) {
		encoded = append(encoded, byte(unit), byte(unit>>8))
	}
	return string(encoded)
}

func TestConflictingSpecs(t *testing.T) {
	n, spec := usableSpec(t)
	binary := "!!binary " + base64.StdEncoding.EncodeToString([]byte(cdi.AgentKind))
	for name, tc := range map[string]struct {
		content  string
		conflict bool
	}{
		"same device":                {conflicting, true},
		"escaped kind":               {strings.Replace(conflicting, "gpucdi.dev/gpu", `"\x67pucdi.dev/gpu"`, 1), true},
		"kind in base64":             {strings.Replace(conflicting, "gpucdi.dev/gpu", binary, 1), true},
		"UTF-16":                     {utf16Of(conflicting), true},
		"JSON escapes":               {`{"cdiVersion":"0.5.0","kind":"\u0067pucdi.dev/gpu","devices":[{"name":"GPU-a","containerEdits":{"env":["A=b"]}}]}`, true},
		"not the first device":       {strings.Replace(conflicting, "[{", "[{name: x, containerEdits: {env: [A=b]}}, {", 1), true},
		"other device":               {strings.ReplaceAll(conflicting, "GPU-a", "GPU-c"), false},
		"other class":                {strings.ReplaceAll(conflicting, "dev/gpu", "dev/other"), false},
		"other vendor":               {strings.ReplaceAll(conflicting, "gpucdi.dev", "other.dev"), false},
		"unknown key":                {conflicting + "unknown: gpucdi.dev/gpu\n", false},
		"invalid version":            {strings.ReplaceAll(conflicting, "0.5.0", "0.0.1"), false},
		"invalid edits":              {strings.ReplaceAll(conflicting, "A=b", "A"), false},
		"truncated":                  {conflicting[:len(conflicting)-8], false},
		"not YAML":                   {"not: [a spec", false},
		"empty":                      {"", false},
		"kind only in an annotation": {strings.ReplaceAll(conflicting, "gpucdi.dev/gpu", "other.dev/gpu") + "annotations: {a: gpucdi.dev/gpu}\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := cdi.AgentFile(dir, n.root())
			if _, err := file.Put(spec); err != nil {
				t.Fatal(err)
			}
			foreign := filepath.Join(dir, "foreign.yaml")
			if err := os.WriteFile(foreign, []byte(tc.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := file.Stale(); got != tc.conflict {
				t.Errorf("after the foreign spec was created: got stale %t", got)
			}
			_, err := file.Put(spec)
			if (err != nil) != tc.conflict || err != nil && !strings.Contains(err.Error(), foreign) {
				t.Errorf("got error %v", err)
			}
			if err := file.Verify(); (err != nil) != tc.conflict {
				t.Errorf("Verify: %v", err)
			}
			if file.Stale() {
				t.Error("stale after Put")
			}
			if data, err := os.ReadFile(foreign); err != nil || string(data) != tc.content {
				t.Errorf("foreign spec changed to %q, %v", data, err)
			}
			if err := os.Remove(foreign); err != nil {
				t.Fatal(err)
			}
			if got := file.Stale(); got != tc.conflict {
				t.Errorf("after the foreign spec was removed: got stale %t", got)
			}
			if _, err := file.Put(spec); err != nil || file.Unchecked() != nil {
				t.Errorf("after the foreign spec was removed: Put: %v, Unchecked: %v", err, file.Unchecked())
			}
		})
	}
}

// within fails the test if a call of do takes too long.
func within(t *testing.T, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("timed out")
	}
}

// allocated returns how many bytes a call of do allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// wideMapping returns a spec that YAML decoders take minutes to parse, because they compare each key with all others.
func wideMapping(size int) string {
	var text strings.Builder
	text.WriteString(conflicting + "annotations:\n")
	for i := 0; text.Len() < size-32; i++ {
		fmt.Fprintf(&text, " k%d: v\n", i)
	}
	return text.String()
}

// Only conflicting specs prevent the use of GPUs.
func TestUnreadableForeignFiles(t *testing.T) {
	n, spec := usableSpec(t)
	for name, tc := range map[string]struct {
		create    func(path string) error
		unchecked bool
	}{
		"dangling symlink":       {func(path string) error { return os.Symlink("nowhere", path) }, false},
		"symlink to itself":      {func(path string) error { return os.Symlink(filepath.Base(path), path) }, false},
		"symlink to a device":    {func(path string) error { return os.Symlink("/dev/zero", path) }, false},
		"symlink to a directory": {func(path string) error { return os.Symlink("/proc/self/root", path) }, false},
		"named pipe":             {func(path string) error { return unix.Mkfifo(path, 0o600) }, false},
		"device":                 {func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) }, false},
		"socket":                 {func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) }, false},
		"directory":              {func(path string) error { return os.Mkdir(path, 0o755) }, false},
		"300 MiB": {func(path string) error {
			return errors.Join(os.WriteFile(path, []byte(conflicting), 0o600), os.Truncate(path, 300<<20))
		}, true},
		"mapping with thousands of keys": {func(path string) error {
			return os.WriteFile(path, []byte(wideMapping(512<<10)), 0o600)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := cdi.AgentFile(dir, n.root())
			if _, err := file.Put(spec); err != nil {
				t.Fatal(err)
			}
			if err := tc.create(filepath.Join(dir, "foreign.json")); err != nil {
				t.Fatal(err)
			}
			bytes := allocated(func() {
				within(t, func() {
					if _, err := file.Put(spec); err != nil {
						t.Errorf("Put: %v", err)
					}
					if file.Stale() {
						t.Error("stale")
					}
					if err := file.Verify(); err != nil {
						t.Errorf("Verify: %v", err)
					}
				})
			})
			if bytes > 100<<20 {
				t.Errorf("allocated %d MiB", bytes>>20)
			}
			err := file.Unchecked()
			if (err != nil) != tc.unchecked || err != nil && !strings.Contains(err.Error(), "foreign.json") {
				t.Errorf("Unchecked: %v", err)
			}
		})
	}
}

// Runtimes may have permission to read specs that this process cannot.
func TestUncheckedReportsPermissionDenied(t *testing.T) {
	n, spec := usableSpec(t)
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Dir(n.dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "foreign.json"), []byte(conflicting), 0o600); err != nil {
		t.Fatal(err)
	}
	file := cdi.AgentFile(dir, n.root())
	asNobody(t, func() {
		if _, err := file.Put(spec); err != nil {
			t.Errorf("Put: %v", err)
		}
		if err := file.Unchecked(); err == nil || !strings.Contains(err.Error(), "foreign.json") {
			t.Errorf("Unchecked: %v", err)
		}
	})
}

// Some tools write a spec for each container and remove it immediately.
func TestShortLivedForeignFiles(t *testing.T) {
	n, spec := usableSpec(t)
	dir := t.TempDir()
	file := cdi.AgentFile(dir, n.root())
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for w := range 2 {
		writers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				path := filepath.Join(dir, fmt.Sprintf("claim-%d-%d.json", w, i%50))
				if err := errors.Join(os.WriteFile(path, []byte(strings.ReplaceAll(conflicting, "gpucdi.dev", "other.dev")), 0o600), os.Remove(path)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 100 {
		if _, err := file.Put(spec); err != nil {
			t.Errorf("Put: %v", err)
		}
		if file.Stale() {
			t.Error("stale")
		}
	}
	close(stop)
	writers.Wait()
}

func TestForeignSpecsAreParsedOnce(t *testing.T) {
	n, spec := usableSpec(t)
	dir := t.TempDir()
	const count = 500
	for i := range count {
		content := strings.ReplaceAll(conflicting, "GPU-a", fmt.Sprintf("claim-%d", i))
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("claim-%d.json", i)), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := cdi.AgentFile(dir, n.root())
	put := func() {
		if _, err := file.Put(spec); err != nil {
			t.Error(err)
		}
	}
	first := allocated(put)
	if later := allocated(put); later > first/3 {
		t.Errorf("first Put allocated %d bytes, second %d", first, later)
	}
	checkNotStale := func() {
		if file.Stale() {
			t.Error("stale")
		}
	}
	if later := allocated(checkNotStale); later > first/10 {
		t.Errorf("first Put allocated %d bytes, Stale %d", first, later)
	}
	if err := os.WriteFile(filepath.Join(dir, "claim-7.json"), []byte(conflicting), 0o600); err != nil {
		t.Fatal(err)
	}
	if !file.Stale() {
		t.Error("not stale after a foreign spec has become conflicting")
	}
}

// The error becomes the message of a fault, in logs, status and Events.
func TestManyConflictsAreSummarized(t *testing.T) {
	n, spec := usableSpec(t)
	dir := t.TempDir()
	for i := range 200 {
		conflict, unchecked := filepath.Join(dir, fmt.Sprintf("a%d.yaml", i)), filepath.Join(dir, fmt.Sprintf("b%d.yaml", i))
		if err := errors.Join(
			os.WriteFile(conflict, []byte(conflicting), 0o600),
			os.WriteFile(unchecked, nil, 0o600), os.Truncate(unchecked, 1<<20),
		); err != nil {
			t.Fatal(err)
		}
	}
	file := cdi.AgentFile(dir, n.root())
	_, err := file.Put(spec)
	for _, err := range []error{err, file.Unchecked()} {
		if err == nil || len(err.Error()) > 4000 || !strings.Contains(err.Error(), "more") {
			t.Errorf("got error %.300v…", err)
		}
	}
}

// If the CDI directory is replaced, nothing blocks, and the spec can be restored once the path is free again.
func TestDirectoryReplaced(t *testing.T) {
	n, spec := usableSpec(t)
	for name, replace := range map[string]func(dir string) error{
		"file":             func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"named pipe":       func(dir string) error { return unix.Mkfifo(dir, 0o600) },
		"dangling symlink": func(dir string) error { return os.Symlink("nowhere", dir) },
		"symlink to itself": func(dir string) error {
			return os.Symlink(filepath.Base(dir), dir)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cdi")
			file := cdi.AgentFile(dir, n.root())
			if _, err := file.Put(spec); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.RemoveAll(dir), replace(dir)); err != nil {
				t.Fatal(err)
			}
			within(t, func() {
				if !file.Stale() {
					t.Error("not stale")
				}
				if _, err := file.Put(spec); err == nil || !strings.Contains(err.Error(), dir) {
					t.Errorf("Put: %v", err)
				}
				if err := file.Watch(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), dir) {
					t.Errorf("Watch: %v", err)
				}
			})
			if err := os.Remove(dir); err != nil {
				t.Fatal(err)
			}
			if written, err := file.Put(spec); err != nil || !written || file.Stale() {
				t.Errorf("got written %t, %v, stale %t", written, err, file.Stale())
			}
		})
	}
}

func TestTooManyForeignFiles(t *testing.T) {
	n, spec := usableSpec(t)
	dir := t.TempDir()
	file := cdi.AgentFile(dir, n.root())
	for i := range 1<<14 + 1 { // one more than maxForeignSpecs
		if err := os.Symlink("nowhere", filepath.Join(dir, fmt.Sprintf("%d.json", i))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := file.Put(spec); err != nil {
		t.Error(err)
	}
	if err := file.Unchecked(); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("Unchecked: %v", err)
	}
	if file.Stale() {
		t.Error("stale")
	}
}
