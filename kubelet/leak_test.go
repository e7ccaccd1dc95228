package kubelet

import (
	"os"
	"runtime"
	"testing"
)

// TestNoLeaks restarts the kubelet a thousand times while one plugin runs.
func TestNoLeaks(t *testing.T) {
	dir := t.TempDir()
	_, stop := start(t, dir)
	defer stop()
	inUse := func() (goroutines, files int) {
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
		checkRegistration(t, k.next())
		k.stop()
		if cycle == 0 {
			goroutines, files = inUse() // the first cycle starts goroutines that remain
		}
	}
	// The number varies a little with the state of the plugin. A leak would add at least one per cycle.
	const tolerance = cycles / 50
	eventually(t, "decrease to the numbers of goroutines and open files after the first kubelet", func() bool {
		g, f := inUse()
		return g <= goroutines+tolerance && f <= files+tolerance
	})
	if sockets := socketsIn(t, dir); len(sockets) > 1 {
		t.Errorf("sockets left behind: %v", sockets)
	}
}
