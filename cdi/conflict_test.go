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

// conflicting is a spec of others that defines a device of inventory.
const conflicting = "cdiVersion: 0.5.0\nkind: gpucdi.dev/gpu\ndevices: [{name: GPU-a, containerEdits: {env: [A=b]}}]\n"

// utf16Of is text as some editors write it.
func utf16Of(text string) string {
	encoded := []byte{0xff, 0xfe}
	for _, unit := range utf16.Encode([]rune(text)) {
		encoded = append(encoded, byte(unit), byte(unit>>8))
	}
	return string(encoded)
}

func TestConflictingSpecs(t *testing.T) {
	n, spec := provableSpec(t)
	binary := "!!binary " + base64.StdEncoding.EncodeToString([]byte(cdi.AgentKind))
	for name, tc := range map[string]struct {
		content  string
		conflict bool
	}{
		"the same device":            {conflicting, true},
		"the kind in escapes":        {strings.Replace(conflicting, "gpucdi.dev/gpu", `"\x67pucdi.dev/gpu"`, 1), true},
		"the kind as base64":         {strings.Replace(conflicting, "gpucdi.dev/gpu", binary, 1), true},
		"UTF-16":                     {utf16Of(conflicting), true},
		"JSON escapes":               {`{"cdiVersion":"0.5.0","kind":"\u0067pucdi.dev/gpu","devices":[{"name":"GPU-a","containerEdits":{"env":["A=b"]}}]}`, true},
		"the last of its devices":    {strings.Replace(conflicting, "[{", "[{name: x, containerEdits: {env: [A=b]}}, {", 1), true},
		"another device":             {strings.ReplaceAll(conflicting, "GPU-a", "GPU-c"), false},
		"another class":              {strings.ReplaceAll(conflicting, "dev/gpu", "dev/other"), false},
		"another vendor":             {strings.ReplaceAll(conflicting, "gpucdi.dev", "other.dev"), false},
		"a key that no spec has":     {conflicting + "unknown: gpucdi.dev/gpu\n", false},
		"a version that is none":     {strings.ReplaceAll(conflicting, "0.5.0", "0.0.1"), false},
		"edits that are invalid":     {strings.ReplaceAll(conflicting, "A=b", "A"), false},
		"half of a spec":             {conflicting[:len(conflicting)-8], false},
		"no YAML":                    {"not: [a spec", false},
		"nothing":                    {"", false},
		"a spec that names the kind": {strings.ReplaceAll(conflicting, "gpucdi.dev/gpu", "other.dev/gpu") + "annotations: {a: gpucdi.dev/gpu}\n", false},
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
			if got := file.Touched(); got != tc.conflict {
				t.Errorf("touched by it: %t", got)
			}
			_, err := file.Put(spec)
			if (err != nil) != tc.conflict || err != nil && !strings.Contains(err.Error(), foreign) {
				t.Errorf("error %v", err)
			}
			if verify := file.Verify(); (verify != nil) != tc.conflict {
				t.Errorf("Verify: %v", verify)
			}
			if file.Touched() {
				t.Error("touched after Put")
			}
			if data, err := os.ReadFile(foreign); err != nil || string(data) != tc.content {
				t.Errorf("it is now %q, %v", data, err)
			}
			if err := os.Remove(foreign); err != nil {
				t.Fatal(err)
			}
			if got := file.Touched(); got != tc.conflict {
				t.Errorf("touched by its removal: %t", got)
			}
			if _, err := file.Put(spec); err != nil || file.Unchecked() != nil {
				t.Errorf("without it: %v, unchecked %v", err, file.Unchecked())
			}
		})
	}
}

// within fails the test when do has not returned after a while.
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
		t.Fatal("it has not returned")
	}
}

// allocated returns how many bytes do allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// wideMapping is a spec that YAML decoders read for minutes: they compare each key with all others.
func wideMapping(size int) string {
	var text strings.Builder
	text.WriteString(conflicting + "annotations:\n")
	for i := 0; text.Len() < size-32; i++ {
		fmt.Fprintf(&text, " k%d: v\n", i)
	}
	return text.String()
}

// Whatever lies beside the spec, GPUs can be given out unless it is a conflicting spec.
func TestForeignFilesThatAreNotRead(t *testing.T) {
	n, spec := provableSpec(t)
	for name, tc := range map[string]struct {
		make      func(path string) error
		unchecked bool
	}{
		"a dangling link":     {func(path string) error { return os.Symlink("nowhere", path) }, false},
		"a link to itself":    {func(path string) error { return os.Symlink(filepath.Base(path), path) }, false},
		"a link to a device":  {func(path string) error { return os.Symlink("/dev/zero", path) }, false},
		"a link to a process": {func(path string) error { return os.Symlink("/proc/self/root", path) }, false},
		"a named pipe":        {func(path string) error { return unix.Mkfifo(path, 0o600) }, false},
		"a device":            {func(path string) error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) }, false},
		"a socket":            {func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) }, false},
		"a directory":         {func(path string) error { return os.Mkdir(path, 0o755) }, false},
		"300 MB": {func(path string) error {
			return errors.Join(os.WriteFile(path, []byte(conflicting), 0o600), os.Truncate(path, 300<<20))
		}, true},
		"a mapping with thousands of keys": {func(path string) error {
			return os.WriteFile(path, []byte(wideMapping(512<<10)), 0o600)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := cdi.AgentFile(dir, n.root())
			if _, err := file.Put(spec); err != nil {
				t.Fatal(err)
			}
			if err := tc.make(filepath.Join(dir, "foreign.json")); err != nil {
				t.Fatal(err)
			}
			bytes := allocated(func() {
				within(t, func() {
					if _, err := file.Put(spec); err != nil {
						t.Errorf("Put: %v", err)
					}
					if file.Touched() {
						t.Error("touched")
					}
					if err := file.Verify(); err != nil {
						t.Errorf("Verify: %v", err)
					}
				})
			})
			if bytes > 100<<20 {
				t.Errorf("%d MiB are allocated", bytes>>20)
			}
			err := file.Unchecked()
			if (err != nil) != tc.unchecked || err != nil && !strings.Contains(err.Error(), "foreign.json") {
				t.Errorf("unchecked: %v", err)
			}
		})
	}
}

// What this process may not read a runtime may.
func TestASpecThatMayNotBeReadIsReported(t *testing.T) {
	n, spec := provableSpec(t)
	dir := t.TempDir()
	for path := dir; path != "/tmp"; path = filepath.Dir(path) {
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
			t.Errorf("unchecked: %v", err)
		}
	})
}

// Other software writes a spec for each container and removes it right after.
func TestForeignFilesThatComeAndGo(t *testing.T) {
	n, spec := provableSpec(t)
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
		if file.Touched() {
			t.Error("touched")
		}
	}
	close(stop)
	writers.Wait()
}

// A directory with thousands of specs is checked after each change of one of them.
func TestForeignSpecsAreParsedOnce(t *testing.T) {
	n, spec := provableSpec(t)
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
		t.Errorf("the first Put allocates %d bytes, the second %d", first, later)
	}
	touched := func() {
		if file.Touched() {
			t.Error("touched")
		}
	}
	if later := allocated(touched); later > first/10 {
		t.Errorf("the first Put allocates %d bytes, a look after it %d", first, later)
	}
	if err := os.WriteFile(filepath.Join(dir, "claim-7.json"), []byte(conflicting), 0o600); err != nil {
		t.Fatal(err)
	}
	if !file.Touched() {
		t.Error("a file that has become a conflict is not noticed")
	}
}

// The reason of a fault goes to the log, to status and to Events.
func TestManyConflictsAreReportedInBrief(t *testing.T) {
	n, spec := provableSpec(t)
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
			t.Errorf("error %.300v…", err)
		}
	}
}

// Whatever takes the place of the directory, nothing blocks, and the spec is there again once the
// directory is.
func TestWhatIsNoDirectory(t *testing.T) {
	n, spec := provableSpec(t)
	for name, replace := range map[string]func(dir string) error{
		"a file":          func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"a named pipe":    func(dir string) error { return unix.Mkfifo(dir, 0o600) },
		"a dangling link": func(dir string) error { return os.Symlink("nowhere", dir) },
		"a link to itself": func(dir string) error {
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
				if !file.Touched() {
					t.Error("untouched")
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
			if written, err := file.Put(spec); err != nil || !written || file.Touched() {
				t.Errorf("written %t, %v, touched %t", written, err, file.Touched())
			}
		})
	}
}

func TestMoreForeignFilesThanAreChecked(t *testing.T) {
	n, spec := provableSpec(t)
	dir := t.TempDir()
	file := cdi.AgentFile(dir, n.root())
	for i := range 1<<14 + 1 {
		if err := os.Symlink("nowhere", filepath.Join(dir, fmt.Sprintf("%d.json", i))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := file.Put(spec); err != nil {
		t.Error(err)
	}
	if err := file.Unchecked(); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("unchecked: %v", err)
	}
	if file.Touched() {
		t.Error("touched")
	}
}
