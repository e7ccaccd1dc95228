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

// Other software writes to the same CDI directory. GPUs stay healthy unless a file is a conflicting spec.
func TestForeignFilesDoNotAffectGPUs(t *testing.T) {
	t.Parallel()
	n, k := startNode(t, patient)
	// The dot hides the files from node.specs, not from runtimes.
	foreignPath := func(name string) string { return filepath.Join(n.cdiDir, "."+name+".json") }
	err := errors.Join(
		os.Symlink("nowhere", foreignPath("dangling")),
		os.Symlink(filepath.Base(foreignPath("loop")), foreignPath("loop")),
		os.Symlink("/dev/zero", foreignPath("device")),
		unix.Mkfifo(foreignPath("pipe"), 0o644),
		os.Mkdir(foreignPath("directory"), 0o755),
		os.WriteFile(foreignPath("large"), []byte("{"), 0o644),
		os.Truncate(foreignPath("large"), 300<<20),
	)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { // short-lived specs, as DRA drivers write for each claim
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			path := foreignPath(fmt.Sprintf("claim-%d", i))
			spec := fmt.Sprintf("cdiVersion: 0.5.0\nkind: other.dev/claim\ndevices: [{name: c%d, containerEdits: {env: [A=b]}}]\n", i)
			if err := errors.Join(os.WriteFile(path, []byte(spec), 0o644), os.Remove(path)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	n.awaitCalls(t, "nvmlEventSetWait_v2", n.nvmlCallCounts(t)["nvmlEventSetWait_v2"]+5) // each probe inspects the directory
	close(stop)
	writer.Wait()
	n.configure(t, "cdi: {features: [compute]}", patient) // makes the agent rewrite its spec
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if spec, err := os.ReadFile(n.spec()); err == nil && !strings.Contains(string(spec), "nvidia-smi") {
			break
		} else if time.Since(start) > timeout {
			t.Fatalf("the spec was not rewritten: %s, %v", spec, err)
		}
	}
	k.awaitGPUs(t, 8, 8)
	n.stopAgent(t)
	logs := n.logs.String()
	if strings.Contains(logs, "unhealthy") {
		t.Errorf("GPUs were unhealthy:\n%s", logs)
	}
	const warning = `msg="other CDI specs not checked for conflicts"`
	if count := strings.Count(logs, warning); count != 1 || !strings.Contains(logs, foreignPath("large")) {
		t.Errorf("the large file was logged %d times, want once:\n%s", count, logs)
	}
}
