package devicemanager

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A kubeletFault is something that happens to the directory in which kubelet
// and agent meet.
type kubeletFault struct {
	name string
	// happen returns the kubelet that goes on, and since when it could.
	happen func(t *testing.T, n *node, k *kubelet) (*kubelet, time.Time)
}

func kubeletFaults() []kubeletFault {
	// A kubelet makes its socket when it starts, and at no other time.
	restartAfter := func(change func(dir string) error) func(*testing.T, *node, *kubelet) (*kubelet, time.Time) {
		return func(t *testing.T, n *node, k *kubelet) (*kubelet, time.Time) {
			k.stop()
			if err := change(filepath.Join(n.kubeletDir, "device-plugins")); err != nil {
				t.Fatal(err)
			}
			since := time.Now()
			return startKubelet(t, k.dir, 2, k.activePods()...), since
		}
	}
	return []kubeletFault{
		{
			name: "the agent's socket is deleted",
			happen: func(t *testing.T, n *node, k *kubelet) (*kubelet, time.Time) {
				before := n.sockets(t)
				if len(before) != 1 {
					t.Fatalf("the agent's sockets are %v, want one", before)
				}
				if err := os.Remove(before[0]); err != nil {
					t.Fatal(err)
				}
				since := time.Now()
				n.newSocket(t, before[0])
				return k, since
			},
		},
		{
			name:   "the kubelet restarts, and makes its socket anew",
			happen: restartAfter(func(string) error { return nil }),
		},
		{
			name: "the directory is wiped, and the kubelet restarts",
			happen: restartAfter(func(dir string) error {
				sockets, err := filepath.Glob(filepath.Join(dir, "*.sock"))
				for _, name := range sockets {
					err = errors.Join(err, os.Remove(name))
				}
				return err
			}),
		},
		{
			name: "the directory is deleted, and the kubelet makes it anew",
			happen: restartAfter(func(dir string) error {
				return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o755),
					os.Rename(dir+".old/kubelet_internal_checkpoint", dir+"/kubelet_internal_checkpoint"))
			}),
		},
	}
}

// TestKubeletFaults logs how long it is until the kubelet has the GPUs again.
func TestKubeletFaults(t *testing.T) {
	document := readHealth(t)
	for _, f := range kubeletFaults() {
		row := "| " + f.name + " |"
		document.must(t, row)
		t.Run(f.name, func(t *testing.T) {
			n, k := both(t)
			pod, before := n.admitted(t, k, "stays", 3)
			k, since := f.happen(t, n, k)
			k.counts(t, 8, 8)
			t.Logf("%s %s |", row, time.Since(since).Round(time.Millisecond))
			if after := n.started(t, k, pod); !slices.Equal(before, after) {
				t.Errorf("the restarted container has %v, before %v", after, before)
			}
			_, others := n.admitted(t, k, "new", 5)
			disjoint(t, before, others)
		})
	}
}
