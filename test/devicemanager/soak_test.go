package devicemanager

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

var (
	soakFor  = flag.Duration("soak", time.Minute, "how long TestSoak lets things go wrong")
	soakSeed = flag.Uint64("seed", 7, "what the choices of TestSoak come from")
)

// soak is a node on which one thing after another goes wrong.
type soak struct {
	*testing.T
	n      *node
	k      *kubelet
	random *rand.Rand

	sick map[string]bool // GPUs that something is wrong with
	pods map[string]*v1.Pod
	made int // pods so far
}

// TestSoak lets a seeded sequence of faults happen while pods come and go.
// CI always runs the same one; -seed gives others.
func TestSoak(t *testing.T) {
	n, k := both(t)
	s := &soak{
		T: t, n: n, k: k, random: rand.New(rand.NewPCG(*soakSeed, 0)),
		sick: map[string]bool{}, pods: map[string]*v1.Pod{},
	}
	t.Logf("replay with -seed %d", *soakSeed)
	steps := 0
	for start := time.Now(); time.Since(start) < *soakFor && !t.Failed(); steps++ {
		s.step()
		time.Sleep(time.Duration(s.random.IntN(500)) * time.Millisecond)
		s.check()
	}
	s.mendAll()
	for _, pod := range s.pods {
		s.k.forget(pod)
	}
	n.admitted(t, s.k, "last", 8)
	t.Logf("%d faults and pods; all 8 GPUs can be given out at the end", steps)
}

// step does one thing that happens to nodes.
func (s *soak) step() {
	gpu := s.n.uuids()[s.random.IntN(8)]
	actions := []struct {
		name string
		do   func() error
		sick bool // the GPU is, from then on until all is mended
	}{
		{"XID 31", func() error { return s.n.driver.RaiseXID(gpu, 31) }, false},
		{"XID 9999", func() error { return s.n.driver.RaiseXID(gpu, 9999) }, true},
		{"lost", func() error { return s.n.driver.Lose(gpu) }, true},
		{"failing", func() error { return s.n.driver.Break(simdriver.Fault{GPU: gpu, Return: unknownError}) }, true},
		{"crashing", func() error { return s.n.driver.Break(simdriver.Fault{GPU: gpu, Crash: true}) }, true},
		{"hanging", func() error { return s.n.driver.Break(simdriver.Fault{GPU: gpu, Hang: time.Hour}) }, true},
		{"spec deleted", func() error { return os.Remove(s.n.spec()) }, false},
		{"socket deleted", func() error { return os.Remove(s.n.sockets(s.T)[0]) }, false},
		{"kubelet restarted", func() error { s.k = s.k.restart(s.T, 2); return nil }, false},
		{"pod comes", s.podComes, false},
		{"pod goes", s.podGoes, false},
		{"pod goes", s.podGoes, false},
		{"all mended", func() error { s.mendAll(); return nil }, false},
	}
	action := actions[s.random.IntN(len(actions))]
	s.Logf("%s (%s)", action.name, gpu)
	if action.sick {
		s.sick[gpu] = true
	}
	if err := action.do(); err != nil && !os.IsNotExist(err) {
		s.Fatalf("%s: %v", action.name, err)
	}
}

// check holds what must be true whatever has happened: no GPU is dropped, the
// well ones are healthy, and every healthy one resolves. The kubelet may just
// be on its way to know it.
func (s *soak) check() {
	s.Helper()
	var wrong string
	for start := time.Now(); time.Since(start) < patience; time.Sleep(5 * time.Millisecond) {
		if wrong = s.wrong(); wrong == "" {
			return
		}
	}
	s.Fatalf("still after %s: %s", patience, wrong)
}

func (s *soak) wrong() string {
	if has, _ := s.k.capacity(); quantity(has) != 8 {
		return fmt.Sprintf("the kubelet knows %d GPUs", quantity(has))
	}
	healthy := s.k.allocatable()[string(gpuResource)]
	for _, uuid := range s.n.uuids() {
		if _, offered := healthy[uuid]; !offered && !s.sick[uuid] {
			return uuid + " has nothing and is not healthy"
		}
	}
	if _, err := os.Stat(s.n.spec()); err != nil {
		return err.Error()
	}
	for uuid := range healthy {
		if given := s.n.resolve(s.T, request{
			cdiDevices:  []string{"gpucdi.dev/gpu=" + uuid},
			annotations: map[string]string{"cdi.k8s.io/soak": "gpucdi.dev/gpu=" + uuid},
		}); !slices.Equal(given, []string{uuid}) {
			return fmt.Sprintf("%s resolves to %v", uuid, given)
		}
	}
	return ""
}

// podComes may be refused where too few GPUs are free or healthy.
func (s *soak) podComes() error {
	s.made++
	pod := newPod(fmt.Sprint("pod-", s.made), 1+s.random.IntN(4))
	if s.k.admit(pod) == nil {
		s.pods[pod.Name] = pod
	}
	return nil
}

func (s *soak) podGoes() error {
	names := slices.Sorted(maps.Keys(s.pods))
	if len(names) > 0 {
		name := names[s.random.IntN(len(names))]
		s.k.forget(s.pods[name])
		delete(s.pods, name)
	}
	return nil
}

// mendAll ends every fault and waits for the GPUs to heal.
func (s *soak) mendAll() {
	s.Helper()
	if err := s.n.driver.Mend(); err != nil {
		s.Fatal(err)
	}
	for _, uuid := range s.n.uuids() {
		if err := s.n.driver.Return(uuid); err != nil {
			s.Fatal(err)
		}
	}
	s.k.counts(s.T, 8, 8)
	s.sick = map[string]bool{}
}
