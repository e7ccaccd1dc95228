package host_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpucdi/gpucdi/internal/host"
)

// An open directory stays accessible in /proc after its removal, like a mounted one.
func TestIsRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cdi")
	if host.IsRemoved(dir) {
		t.Error("a missing directory is reported as removed")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	open, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	mounted := fmt.Sprintf("/proc/self/fd/%d", open.Fd())
	if host.IsRemoved(dir) || host.IsRemoved(mounted) {
		t.Error("an existing directory is reported as removed")
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if host.IsRemoved(dir) || !host.IsRemoved(mounted) {
		t.Error("want the removed directory reported as removed only where it is mounted")
	}
}
