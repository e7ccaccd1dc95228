package kubelet

import (
	"os"
	"runtime"
	"testing"
)

// TestNothingLeaks restarts the kubelet a thousand times under one plugin.
func TestNothingLeaks(t *testing.T) {
	dir := t.TempDir()
	_, stop := start(t, dir)
	defer stop()
	held := func() (goroutines, files int) {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return runtime.NumGoroutine(), len(fds)
	}
	var goroutines, files int
	const cycles = 1000
	for cycle := range cycles {
		k := newFakeKubelet(t, dir).start()
		works(t, k.next())
		k.stop()
		if cycle == 0 {
			goroutines, files = held() // what one kubelet has left is there for good
		}
	}
	// A plugin that waits has fewer than one that registers; what leaks comes by
	// the thousand.
	const few = cycles / 50
	eventually(t, "about as many goroutines and open files as after the first kubelet", func() bool {
		g, f := held()
		return g <= goroutines+few && f <= files+few
	})
	if sockets := socketsIn(t, dir); len(sockets) > 1 {
		t.Errorf("the sockets %v are left", sockets)
	}
}
