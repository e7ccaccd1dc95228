package agent

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The agent exits if a directory that its pod mounts from the node was removed. An open directory stays accessible in
// /proc after its removal, like a mounted one.
func TestWatchMounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		open, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		mounted := fmt.Sprintf("/proc/self/fd/%d", open.Fd())
		a := New(Config{CDIDir: mounted, KubeletDir: t.TempDir()}, slog.New(slog.DiscardHandler))
		ended := make(chan error, 1)
		go func() { ended <- a.watchMounts(t.Context()) }()
		time.Sleep(time.Minute)
		select {
		case err := <-ended:
			t.Fatalf("ended before the removal: %v", err)
		default:
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err == nil || !strings.Contains(err.Error(), mounted+" was removed") {
			t.Errorf("error %v, want one about %s", err, mounted)
		}
	})
}
