package cordon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

const uuid = "GPU-4fbdcb86-5b5c-4b5f-8c3a-000000000000"

// write writes the file of a device as another program would.
func write(t *testing.T, s Store, name, text string) {
	t.Helper()
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func list(t *testing.T, s Store) map[string]Cordon {
	t.Helper()
	all, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestCordon(t *testing.T) {
	s, now := Open(filepath.Join(t.TempDir(), "missing")), time.Unix(1e9, 0).UTC()
	if all := list(t, s); len(all) != 0 {
		t.Errorf("without a directory: %v", all)
	}
	if err := s.Set(uuid, "fan", now); err != nil {
		t.Fatal(err)
	}
	if err := s.Set(uuid, "fan and memory", now.Add(time.Hour)); err != nil { // keeps the time
		t.Fatal(err)
	}
	if got, want := list(t, s)[uuid], (Cordon{"fan and memory", now}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	want := gpu.Fault{Code: gpu.FaultCordoned, Message: "cordoned: fan and memory", Remedy: "to allocate it again, run gpucdi uncordon", Since: now}
	if got := list(t, s)[uuid].Fault(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if message := (Cordon{}).Fault().Message; message != "cordoned" {
		t.Errorf("message without a reason: %q", message)
	}
	for _, want := range []bool{true, false} {
		if removed, err := s.Remove(uuid); removed != want || err != nil {
			t.Errorf("Remove returned %v, %v, want %v", removed, err, want)
		}
	}
	if all := list(t, s); len(all) != 0 {
		t.Errorf("after Remove: %v", all)
	}
}

// Concurrent writers lose no cordon.
func TestConcurrentWriters(t *testing.T) {
	dir := t.TempDir()
	var group sync.WaitGroup
	for i := range 64 {
		group.Go(func() {
			s := Open(dir)
			if err := s.Set(fmt.Sprint("GPU-", i), "", time.Now()); err != nil {
				t.Error(err)
			}
			if i%2 == 0 {
				if _, err := s.Remove(fmt.Sprint("GPU-", i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if all := list(t, Open(dir)); len(all) != 32 {
		t.Errorf("got %d cordons, want 32", len(all))
	}
}

func TestUnknownFieldsAreKept(t *testing.T) {
	s := Open(t.TempDir())
	write(t, s, uuid+".json", `{"reason":"fan","until":"friday"}`)
	if err := s.Set(uuid, "", time.Unix(1e9, 0)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(s.path(uuid))
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]string
	if err := json.Unmarshal(text, &fields); err != nil || fields["until"] != "friday" || fields["reason"] != "" || fields["since"] == "" {
		t.Errorf("got %s, %v", text, err)
	}
}

// A damaged file keeps its device cordoned and is reported. It affects no other device.
func TestDamagedFile(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "truncated": `{"reason":"f`, "null": "null", "list": "[]", "type": `{"reason":5}`, "time": `{"since":"yesterday"}`,
		"control characters": `{"reason":"a\u001b[2J"}`, "long": `{"reason":"` + strings.Repeat("x", MaxReason+1) + `"}`,
		"large": strings.Repeat(" ", sizeLimit+1),
	} {
		t.Run(name, func(t *testing.T) {
			s := Open(t.TempDir())
			write(t, s, uuid+".json", text)
			if err := s.Set("GPU-other", "fan", time.Now()); err != nil {
				t.Fatal(err)
			}
			all, err := s.List()
			if err == nil || !strings.Contains(err.Error(), uuid) {
				t.Errorf("error %v", err)
			}
			if c, cordoned := all[uuid]; !cordoned || c != (Cordon{}) || all["GPU-other"].Reason != "fan" {
				t.Errorf("got %+v", all)
			}
			if err := s.Set(uuid, "repaired", time.Now()); err != nil {
				t.Fatal(err)
			}
			if got := list(t, s)[uuid].Reason; got != "repaired" {
				t.Errorf("after Set: %q", got)
			}
		})
	}
}

// Other files are ignored, such as the temporary file of a writer that was killed between write and rename.
func TestOtherFiles(t *testing.T) {
	s := Open(t.TempDir())
	for _, name := range []string{"." + uuid + ".json.123", uuid, uuid + ".json.new", "gpu.json", ".json", "GPU-.json", "GPU-a b.json"} {
		write(t, s, name, `{"reason":"fan"}`)
	}
	if all := list(t, s); len(all) != 0 {
		t.Errorf("got %v", all)
	}
	write(t, s, uuid+".json", "{}")
	if all := list(t, s); len(all) != 1 {
		t.Errorf("got %v", all)
	}
	for i := range maxFiles {
		write(t, s, fmt.Sprintf("GPU-%d.json", i), "{}")
	}
	if all, err := s.List(); all != nil || err == nil { // the last cordons stay in effect
		t.Errorf("with too many files: %d cordons, %v", len(all), err)
	}
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := s.List(); all != nil || err == nil {
		t.Errorf("with a file in place of the directory: %v, %v", all, err)
	}
}

func TestInvalidCordons(t *testing.T) {
	s := Open(t.TempDir())
	for _, tc := range []struct{ uuid, reason string }{
		{"../GPU-a", ""}, {"3", ""}, {"GPU-a/b", ""}, {"", ""}, {uuid, "two\nlines"}, {uuid, "\xff"}, {uuid, strings.Repeat("x", MaxReason+1)},
	} {
		if err := s.Set(tc.uuid, tc.reason, time.Now()); err == nil {
			t.Errorf("accepted %q for %q", tc.reason, tc.uuid)
		}
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was written: %v", err)
	}
}

// Watch detects changes by other processes, also after the state directory was removed and recreated.
func TestWatch(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := Open(dir)
	received := make(chan map[string]Cordon, 100)
	go func() {
		for t.Context().Err() == nil { // restarted as by the agent, also if it fails because the directory is being removed
			_ = s.Watch(t.Context(), slog.New(slog.DiscardHandler), func(all map[string]Cordon, _ error) { received <- all })
			time.Sleep(time.Millisecond)
		}
	}()
	expect := func(after string, want ...string) {
		t.Helper()
		late := time.After(30 * time.Second)
		for {
			select {
			case all := <-received:
				same := len(all) == len(want)
				for _, w := range want {
					_, found := all[w]
					same = same && found
				}
				if same {
					return
				}
			case <-late:
				t.Fatalf("after %s: no update with %q", after, want)
			}
		}
	}
	set := func(uuid string) {
		t.Helper()
		if err := s.Set(uuid, "", time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	expect("start")
	set("GPU-a")
	expect("cordon", "GPU-a")
	set("GPU-b")
	expect("another cordon", "GPU-a", "GPU-b")
	if _, err := s.Remove("GPU-a"); err != nil {
		t.Fatal(err)
	}
	expect("uncordon", "GPU-b")
	for os.RemoveAll(dir) != nil { // it fails if the restarted watch recreates the directory meanwhile
		time.Sleep(time.Millisecond)
	}
	expect("removal of the state directory")
	set("GPU-c")
	expect("cordon in a new directory", "GPU-c")
}
