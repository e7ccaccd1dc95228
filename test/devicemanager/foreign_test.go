package devicemanager

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Other software writes specs to the same directory, and anything can lie there. GPUs stay
// healthy unless it is a conflicting spec.
func TestForeignFilesAffectNoGPU(t *testing.T) {
	n, k := both(t)
	// The dot hides them from the test's own look at the directory, not from runtimes.
	at := func(name string) string { return filepath.Join(n.cdiDir, "."+name+".json") }
	err := errors.Join(
		os.Symlink("nowhere", at("dangling")),
		os.Symlink(filepath.Base(at("loop")), at("loop")),
		os.Symlink("/dev/zero", at("device")),
		unix.Mkfifo(at("pipe"), 0o644),
		os.Mkdir(at("directory"), 0o755),
		os.WriteFile(at("large"), []byte("{"), 0o644),
		os.Truncate(at("large"), 300<<20),
	)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { // a spec for each claim, gone right after
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			path := at(fmt.Sprintf("claim-%d", i))
			spec := fmt.Sprintf("cdiVersion: 0.5.0\nkind: other.dev/claim\ndevices: [{name: c%d, containerEdits: {env: [A=b]}}]\n", i)
			if err := errors.Join(os.WriteFile(path, []byte(spec), 0o644), os.Remove(path)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	n.awaitCalls(t, "nvmlEventSetWait_v2", n.counted(t)["nvmlEventSetWait_v2"]+5) // probes, each with a look at the directory
	close(stop)
	writer.Wait()
	n.configure(t, "cdi: {features: [compute]}") // another spec is written
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if spec, err := os.ReadFile(n.spec()); err == nil && !strings.Contains(string(spec), "nvidia-smi") {
			break
		} else if time.Since(start) > patience {
			t.Fatalf("the spec is still %s, %v", spec, err)
		}
	}
	k.counts(t, 8, 8)
	n.stopAgent(t)
	said := n.said.String()
	if strings.Contains(said, "unhealthy") {
		t.Errorf("GPUs were unhealthy:\n%s", said)
	}
	if times := strings.Count(said, `msg="other CDI specs are not checked for conflicts"`); times != 1 || !strings.Contains(said, at("large")) {
		t.Errorf("the large file was reported %d times:\n%s", times, said)
	}
}
