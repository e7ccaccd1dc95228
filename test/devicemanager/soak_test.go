package devicemanager

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

var (
	soakDuration = flag.Duration("soak", time.Minute, "total duration of the cases of TestSoak")
	soakSeed     = flag.Uint64("seed", 7, "seed of the random actions of TestSoak")
)

// twoReplicas configures two replicas of each GPU.
const twoReplicas = "resources: [{name: nvidia.com/gpu, replicas: 2}]"

// soakCase is a node that TestSoak runs on.
type soakCase struct {
	name      string
	profile   simdriver.Profile
	config    []string
	resources []v1.ResourceName // requested by pods
	// change changes the replicas or the MIG layout while pods hold devices. It returns false if no change is possible
	// now. If it is nil, the case has no such changes.
	change func(s *soak, gpu string) (changed bool, err error)
}

var soakCases = []soakCase{
	{name: "GPUs", profile: simdriver.H100x8(), resources: []v1.ResourceName{gpuResource}},
	{name: "sharing", profile: simdriver.PCIe4(), config: []string{twoReplicas}, resources: []v1.ResourceName{gpuResource}, change: (*soak).changeSharing},
	{name: "MIG", profile: simdriver.A100MIG(), config: []string{"mig: {strategy: mixed}"},
		resources: []v1.ResourceName{gpuResource, small, large}, change: (*soak).repartition},
}

// soak is a node on which random actions run.
type soak struct {
	*testing.T
	soakCase
	n      *node
	k      *kubelet
	random *rand.Rand

	faulty    map[string]bool // GPUs with an injected fault, until clearFaults
	suspect   map[string]bool // GPUs that may be unhealthy: faulty, or had an XID
	pods      map[string]*soakPod
	exclusive bool // of the case "sharing": the current config has no replicas

	added   int            // number of pods so far
	maxPods int            // highest number of pods on a GPU
	counts  map[string]int // by kind of action
}

// soakPod is an admitted pod.
type soakPod struct {
	*v1.Pod
	shared bool     // its devices are replicas
	nodes  []string // device nodes of its GPUs and MIG devices
}

// TestSoak injects a seeded random sequence of faults while pods are added and removed.
func TestSoak(t *testing.T) {
	t.Parallel()
	for _, c := range soakCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, *soakDuration/time.Duration(len(soakCases)))
		})
	}
}

func (c soakCase) run(t *testing.T, duration time.Duration) {
	n := newNode(t, c.profile)
	n.configure(t, c.config...)
	k := startKubelet(t, n.kubeletDir, 2)
	s := &soak{
		T: t, soakCase: c, n: n, k: k, random: rand.New(rand.NewPCG(*soakSeed, 0)),
		faulty: map[string]bool{}, suspect: map[string]bool{}, pods: map[string]*soakPod{}, counts: map[string]int{},
	}
	n.startAgent(t)
	s.check(true)
	t.Logf("replay with -seed %d", *soakSeed)
	for start := time.Now(); time.Since(start) < duration || s.missing() != "" && time.Since(start) < duration+timeout; {
		s.step()
		time.Sleep(time.Duration(s.random.IntN(500)) * time.Millisecond)
		s.check(s.change == nil)
	}
	if err := s.clearFaults(); err != nil {
		t.Fatal(err)
	}
	s.check(s.change == nil)
	s.allocateAll()
	t.Logf("at most %d pods shared a GPU; actions: %v", s.maxPods, s.counts)
	if action := s.missing(); action != "" {
		t.Errorf("never happened: %s", action)
	}
}

// missing returns an action that must have happened at least once for the test to be meaningful; empty if all have.
func (s *soak) missing() string {
	required := []string{"admitted", "admitted with an init container", "faulty"}
	if s.change != nil {
		required = append(required, "replicas or MIG layout changed")
	}
	for _, action := range required {
		if s.counts[action] == 0 {
			return action
		}
	}
	if s.name == "sharing" && s.maxPods < 2 {
		return "two pods sharing a GPU"
	}
	return ""
}

// step runs one random action.
func (s *soak) step() {
	gpu := s.n.uuids()[s.random.IntN(s.gpus())]
	inject := func(do func() error) func() error {
		return func() error {
			s.faulty[gpu], s.suspect[gpu] = true, true
			s.counts["faulty"]++
			return do()
		}
	}
	fault := func(f simdriver.Fault) func() error {
		f.GPU = gpu
		return inject(func() error { return s.n.driver.InjectFault(f) })
	}
	type action struct {
		name string
		do   func() error
	}
	kinds := [][]action{ // equally likely
		{
			{"XID 31", func() error { return s.n.driver.RaiseXID(gpu, 31) }},
			{"XID 9999", func() error { return s.transientXID(gpu) }},
			{"lost", inject(func() error { return s.n.driver.Lose(gpu) })},
			{"failing", fault(simdriver.Fault{Return: unknownError})},
			{"crashing", fault(simdriver.Fault{Crash: true})},
			{"hanging", fault(simdriver.Fault{Hang: time.Hour})},
		},
		{{"spec deleted", s.deleteSpec}, {"socket deleted", s.deleteSocket}, {"kubelet restarted", s.restartKubelet}},
		{{"faults cleared", s.clearFaults}, {"replicas or MIG layout changed", func() error { return s.changeConfig(gpu) }}},
		{{"pod added", s.addPod}},
		{{"pod added", s.addPod}},
		{{"pod removed", s.removePod}},
	}
	kind := kinds[s.random.IntN(len(kinds))]
	next := kind[s.random.IntN(len(kind))]
	s.Logf("%s (%s)", next.name, gpu)
	if err := next.do(); err != nil {
		s.Fatalf("%s: %v", next.name, err)
	}
}

// check waits until all invariants hold. settled is whether devices without a pod must be allocatable again.
func (s *soak) check(settled bool) {
	s.Helper()
	s.await(func() string { return s.problem(settled) })
}

// await restarts all containers and calls problem, until problem returns "".
func (s *soak) await(problem func() string) {
	s.Helper()
	var last string
	for start := time.Now(); time.Since(start) < timeout; time.Sleep(10 * time.Millisecond) {
		s.restartContainers()
		if last = problem(); last == "" {
			return
		}
	}
	s.Fatalf("after %s: %s", timeout, last)
}

// problem returns a violated invariant, if any: all GPUs are advertised, the healthy ones are allocatable, the faulty
// ones are not, and allocatable devices resolve. Only cases without changes check the first and the last of these.
func (s *soak) problem(settled bool) string {
	if capacity, _ := s.k.capacity(); s.change == nil && quantity(capacity) != int64(s.gpus()) {
		return fmt.Sprintf("the kubelet has %d GPUs", quantity(capacity))
	}
	if _, err := os.Stat(s.n.spec()); err != nil {
		return err.Error()
	}
	allocatable := map[string]bool{}
	for resource, devices := range s.k.allocatable() {
		for id := range devices {
			gpu := s.gpuOf(id)
			if gpu == nil {
				return fmt.Sprintf("%s of %s is healthy, but the driver does not have it", id, resource)
			}
			if s.faulty[gpu.UUID] {
				return fmt.Sprintf("%s of %s is healthy, but %s is faulty", id, resource, gpu.UUID)
			}
			allocatable[gpu.UUID] = true
			if s.change == nil {
				s.n.injectedGPUs(s.T, containerRequest{
					cdiDevices:  []string{"gpucdi.dev/gpu=" + id},
					annotations: map[string]string{"cdi.k8s.io/soak": "gpucdi.dev/gpu=" + id},
				})
			}
		}
	}
	for _, gpu := range s.n.driver.State().GPUs {
		empty := gpu.MIGMode == 1 && len(gpu.MIG) == 0
		if settled && !empty && !allocatable[gpu.UUID] && !s.suspect[gpu.UUID] && (s.change == nil || !s.held(gpu)) {
			return gpu.UUID + " is neither allocated nor allocatable"
		}
	}
	return ""
}

// gpuOf returns the GPU of a device ID; nil if the driver lacks the device.
func (s *soak) gpuOf(id string) *simdriver.GPU {
	id, _, _ = strings.Cut(id, "::")
	for _, g := range s.n.driver.State().GPUs {
		if g.UUID == id && g.MIGMode != 1 || slices.ContainsFunc(g.MIG, func(m simdriver.MIGDevice) bool { return m.UUID == id }) {
			return &g
		}
	}
	return nil
}

// held reports whether a pod holds a GPU or a MIG device of it.
func (s *soak) held(gpu simdriver.GPU) bool {
	for _, pod := range s.pods {
		if slices.Contains(pod.nodes, gpuNode(gpu)) {
			return true
		}
	}
	return false
}

func (s *soak) gpus() int { return len(s.profile.GPUs) }

func gpuNode(gpu simdriver.GPU) string { return fmt.Sprintf("/dev/nvidia%d", gpu.Minor) }

// transientXID raises an XID of class transient and waits until it is detected. It does not wait in cases with changes,
// nor if a GPU is faulty, because an XID is lost while the driver worker is replaced.
func (s *soak) transientXID(gpu string) error {
	s.suspect[gpu] = true
	if err := s.n.driver.RaiseXID(gpu, 9999); err != nil || len(s.faulty) > 0 || s.change != nil {
		return err
	}
	s.counts["detected XIDs"]++
	s.await(func() string {
		for _, devices := range s.k.allocatable() {
			for id := range devices {
				if g := s.gpuOf(id); g != nil && g.UUID == gpu {
					return gpu + " is healthy after an XID"
				}
			}
		}
		return ""
	})
	return nil
}

func (s *soak) deleteSpec() error { return os.Remove(s.n.spec()) }

func (s *soak) deleteSocket() error {
	for _, socket := range s.n.sockets(s.T) {
		if err := os.Remove(socket); err != nil {
			return err
		}
	}
	return nil
}

func (s *soak) restartKubelet() error {
	s.k = s.k.restart(s.T, 2)
	return nil
}

// addPod admits a random pod. It may be rejected if too few devices are allocatable.
func (s *soak) addPod() error {
	s.added++
	name := fmt.Sprint("pod-", s.added)
	resource := s.resources[s.random.IntN(len(s.resources))]
	pod := podWith(name, resource, 1+s.random.IntN(3))
	if s.random.IntN(2) == 0 {
		init := podWith(name, resource, 1+s.random.IntN(3)).Spec.Containers
		init[0].Name = "init"
		pod.Spec.InitContainers = init
	}
	if err := s.k.admit(pod); err != nil {
		s.counts["rejected"]++
		return nil
	}
	s.counts["admitted"]++
	if len(pod.Spec.InitContainers) > 0 {
		s.counts["admitted with an init container"]++
	}
	s.pods[name] = &soakPod{Pod: pod, shared: s.hasReplicas(pod)}
	s.restartContainers()
	return nil
}

// hasReplicas reports whether the kubelet has allocated replicas to a pod.
func (s *soak) hasReplicas(pod *v1.Pod) bool {
	for _, devices := range s.k.GetDevices(string(pod.UID), pod.Spec.Containers[0].Name) {
		for id := range devices {
			return strings.Contains(id, "::")
		}
	}
	s.Fatalf("the kubelet has allocated no device to %s", pod.Name)
	return false
}

// restartContainers restarts the containers of all pods, and checks that no GPU or MIG device is in more pods than may
// share it.
func (s *soak) restartContainers() {
	s.Helper()
	if _, err := os.Stat(s.n.spec()); err != nil {
		return // containers cannot start without it
	}
	users := map[string][]*soakPod{}
	for _, name := range slices.Sorted(maps.Keys(s.pods)) {
		pod := s.pods[name]
		pod.nodes = s.nodesOf(pod.Pod)
		for _, node := range pod.nodes {
			users[node] = append(users[node], pod)
		}
	}
	for node, pods := range users {
		limit := len(pods) // MIG devices of a GPU share its device node
		if isCapability(node) || slices.ContainsFunc(pods, (*soakPod).whole) {
			limit = 1
		}
		if !slices.ContainsFunc(pods, func(p *soakPod) bool { return !p.shared }) {
			limit = 2
		}
		if len(pods) > limit {
			s.Fatalf("%d pods have %s, want at most %d: %v", len(pods), node, limit, pods)
		}
		s.maxPods = max(s.maxPods, len(pods))
	}
}

// nodesOf starts the containers of a pod and returns the device nodes of their GPUs and MIG devices. The kubelet reuses
// the devices of init containers for the containers after them.
func (s *soak) nodesOf(pod *v1.Pod) (nodes []string) {
	s.Helper()
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		r, err := s.k.startContainer(s.Context(), pod, &c)
		if err != nil {
			s.Fatalf("starting %s of %s: %v", c.Name, pod.Name, err)
		}
		for _, node := range s.n.injectedNodes(s.T, r) {
			if isCapability(node) || slices.ContainsFunc(s.n.driver.State().GPUs, func(g simdriver.GPU) bool { return gpuNode(g) == node }) {
				nodes = append(nodes, node)
			}
		}
	}
	if len(nodes) == 0 {
		s.Fatalf("%s has no GPU", pod.Name)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

func isCapability(node string) bool { return strings.HasPrefix(node, "/dev/nvidia-caps/") }

// whole reports whether the pod has no MIG devices.
func (p *soakPod) whole() bool { return !slices.ContainsFunc(p.nodes, isCapability) }

func (p *soakPod) String() string {
	return fmt.Sprintf("%s (shared: %t) has %v", p.Name, p.shared, p.nodes)
}

func (s *soak) removePod() error {
	names := slices.Sorted(maps.Keys(s.pods))
	if len(names) > 0 {
		name := names[s.random.IntN(len(names))]
		s.k.removePod(s.pods[name].Pod)
		delete(s.pods, name)
	}
	return nil
}

// changeConfig waits until all devices without a pod are allocatable, changes the replicas or the MIG layout, and adds
// a pod. Without pods it changes nothing.
func (s *soak) changeConfig(gpu string) error {
	if s.change == nil || len(s.pods) == 0 {
		return nil
	}
	s.check(true)
	changed, err := s.change(s, gpu)
	if err != nil || !changed {
		return err
	}
	s.counts["replicas or MIG layout changed"]++
	s.check(false)
	return s.addPod()
}

// changeSharing toggles between two replicas of each GPU and none.
func (s *soak) changeSharing(string) (changed bool, err error) {
	if s.exclusive = !s.exclusive; s.exclusive {
		s.n.configure(s.T)
	} else {
		s.n.configure(s.T, twoReplicas)
	}
	s.await(func() string {
		for id := range s.k.allocatable()[string(gpuResource)] {
			if strings.Contains(id, "::") == s.exclusive {
				return fmt.Sprintf("%s is healthy, want exclusive GPUs: %t", id, s.exclusive)
			}
		}
		return ""
	})
	return true, nil
}

// repartition changes the MIG layout of a GPU or disables its MIG mode. It prefers a GPU whose MIG devices are
// allocated. It does not change an allocated whole GPU, because the driver does not enable MIG mode of a GPU in use.
func (s *soak) repartition(gpu string) (changed bool, err error) {
	var partitioned []string
	for _, g := range s.n.driver.State().GPUs {
		switch {
		case !s.held(g):
		case g.MIGMode == 1:
			partitioned = append(partitioned, g.UUID)
		case g.UUID == gpu:
			return false, nil
		}
	}
	if len(partitioned) > 0 {
		gpu = partitioned[s.random.IntN(len(partitioned))]
	}
	layouts := [][]string{nil, {"3g.20gb", "3g.20gb"}, slices.Repeat([]string{"1g.5gb"}, 7)}
	layout := layouts[s.random.IntN(len(layouts))]
	if layout == nil {
		state := s.n.driver.State()
		return state.GPU(gpu).MIGMode == 1, s.n.driver.Unpartition(gpu)
	}
	return true, s.n.driver.Partition(gpu, layout...)
}

// clearFaults clears all injected faults.
func (s *soak) clearFaults() error {
	errs := []error{s.n.driver.ClearFaults()}
	for _, uuid := range s.n.uuids() {
		errs = append(errs, s.n.driver.Return(uuid))
	}
	clear(s.faulty)
	clear(s.suspect)
	return errors.Join(errs...)
}

// allocateAll removes all pods and allocates all GPUs to a single pod, without MIG mode and replicas.
func (s *soak) allocateAll() {
	s.Helper()
	for _, pod := range s.pods {
		s.k.removePod(pod.Pod)
	}
	clear(s.pods)
	s.n.configure(s.T, "mig: {strategy: mixed}")
	for _, gpu := range s.n.driver.State().GPUs {
		if gpu.MIGMode == 1 {
			if err := s.n.driver.Unpartition(gpu.UUID); err != nil {
				s.Fatal(err)
			}
		}
	}
	want := slices.Sorted(slices.Values(s.n.uuids()))
	s.await(func() string {
		got := slices.Sorted(maps.Keys(s.k.allocatable()[string(gpuResource)]))
		if !slices.Equal(got, want) {
			return fmt.Sprintf("%v are allocatable, want %v", got, want)
		}
		return ""
	})
	s.n.admitPod(s.T, s.k, "last", s.gpus())
}
