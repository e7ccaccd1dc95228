package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// taskDir contains the OCI bundles of the containers that containerd runs for the kubelet. containerd deletes the
// bundle of a container before it reports that the container has exited.
const taskDir = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"

var gpuNode = regexp.MustCompile(`^/dev/nvidia\d+$`)

// sharedClaim is a variable with the name of a claim that several pods may have.
const sharedClaim = "SHARED_CLAIM"

// watchDisjoint checks until the test ends that no GPU is in the containers of two pods at the same time. It ignores
// pods outside the namespace default, because the agent has all GPUs. Pods with the same sharedClaim may share its GPUs,
// for example a pod that was deleted by force and the one recreated with its name and claim. It compares other pods by
// UID. The test must not delete pods of the device plugin by force, since the kubelet allocates their GPUs to others while
// their containers still run. The test must run a pod with a GPU.
func (c *cluster) watchDisjoint(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := disjointWatch{dir: c.Box.Path(taskDir), bundles: map[string]bundle{}, conflicts: map[string]bool{}}
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			w.sample()
			time.Sleep(20 * time.Millisecond)
		}
	})
	t.Cleanup(func() {
		cancel()
		done.Wait()
		t.Logf("GPUs of all containers compared %d times", w.samples)
		if !w.sawGPU() {
			t.Errorf("no container with a GPU was found in %s; last error: %v", w.dir, w.err)
		}
		for conflict := range w.conflicts {
			t.Error(conflict)
		}
	})
}

// disjointWatch compares the GPUs of containers.
type disjointWatch struct {
	dir       string
	bundles   map[string]bundle // by container ID
	conflicts map[string]bool   // by message
	samples   int
	err       error // the latest, of any kind; most are due to containers being created or deleted
}

// sawGPU reports whether a container with a GPU was found.
func (w *disjointWatch) sawGPU() bool {
	for _, b := range w.bundles {
		if len(b.gpus) > 0 {
			return true
		}
	}
	return false
}

// bundle is the holder and the GPUs of a container, read from the OCI spec in its bundle.
type bundle struct {
	holder string   // name and UID of the pod, or its sharedClaim
	gpus   []string // paths of GPU device nodes
}

func (w *disjointWatch) sample() {
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		w.err = err
		return
	}
	w.samples++
	holders := map[string]string{}
	for _, e := range entries {
		b, known := w.bundles[e.Name()]
		if !known {
			if b, err = readBundle(filepath.Join(w.dir, e.Name(), "config.json")); err != nil {
				w.err = err
				continue // being created or deleted
			}
			w.bundles[e.Name()] = b
		}
		for _, gpu := range b.gpus {
			if other := holders[gpu]; other != "" && other != b.holder {
				w.conflicts[fmt.Sprintf("%s and %s have %s at the same time", other, b.holder, gpu)] = true
			}
			holders[gpu] = b.holder
		}
	}
}

func readBundle(path string) (b bundle, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return b, err
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return b, err
	}
	uid := spec.Annotations["io.kubernetes.cri.sandbox-uid"]
	if uid == "" {
		return b, fmt.Errorf("%s has no pod", path)
	}
	b.holder = fmt.Sprintf("pod %s (%s)", spec.Annotations["io.kubernetes.cri.sandbox-name"], uid)
	for _, variable := range spec.Process.Env {
		if claim, found := strings.CutPrefix(variable, sharedClaim+"="); found {
			b.holder = "claim " + claim
		}
	}
	if spec.Annotations["io.kubernetes.cri.sandbox-namespace"] != "default" {
		return b, nil // the agent
	}
	for _, d := range spec.Linux.Devices {
		if gpuNode.MatchString(d.Path) {
			b.gpus = append(b.gpus, d.Path)
		}
	}
	return b, nil
}
