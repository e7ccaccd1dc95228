package devicemanager

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

var (
	soakFor  = flag.Duration("soak", time.Minute, "duration of the faults of TestSoak, over all of its cases")
	soakSeed = flag.Uint64("seed", 7, "seed of the choices of TestSoak")
)

// sharedByTwo has each GPU shared by two containers.
const sharedByTwo = "resources: [{name: nvidia.com/gpu, replicas: 2}]"

// soakCase is a node to soak.
type soakCase struct {
	name    string
	profile simdriver.Profile
	config  []string
	pods    []v1.ResourceName // that pods request
	// change has the GPUs given out in another way, while pods hold them; nil: never.
	change func(s *soak, gpu string) error
}

var soakCases = []soakCase{
	{name: "GPUs", profile: simdriver.H100x8(), pods: []v1.ResourceName{gpuResource}},
	{name: "sharing", profile: simdriver.PCIe4(), config: []string{sharedByTwo}, pods: []v1.ResourceName{gpuResource}, change: (*soak).changeSharing},
	{name: "MIG", profile: simdriver.A100MIG(), config: []string{"mig: {strategy: mixed}"},
		pods: []v1.ResourceName{gpuResource, small, large}, change: (*soak).repartition},
}

// soak is a node on which one thing after another goes wrong.
type soak struct {
	*testing.T
	soakCase
	n      *node
	k      *kubelet
	lister *currentHolders
	random *rand.Rand

	broken map[string]bool // GPUs that the driver has broken, until the driver is restored
	ill    map[string]bool // GPUs that may be unhealthy: these, and those that had an XID
	pods   map[string]*soakPod
	alone  bool // the config shares no GPU

	made   int            // pods so far
	most   int            // pods on a GPU at once
	counts map[string]int // what has happened
}

// soakPod is a pod that was admitted.
type soakPod struct {
	*v1.Pod
	shares bool     // its devices are replicas
	nodes  []string // of GPUs and MIG devices that its containers have
}

// TestSoak lets a seeded sequence of faults happen while pods come and go.
// CI always runs the same one; -seed gives others.
func TestSoak(t *testing.T) {
	for _, c := range soakCases {
		t.Run(c.name, func(t *testing.T) { c.run(t, *soakFor/time.Duration(len(soakCases))) })
	}
}

func (c soakCase) run(t *testing.T, duration time.Duration) {
	n := newNode(t, c.profile)
	n.configure(t, c.config...)
	k := startKubelet(t, n.kubeletDir, 2)
	s := &soak{
		T: t, soakCase: c, n: n, k: k, lister: &currentHolders{}, random: rand.New(rand.NewPCG(*soakSeed, 0)),
		broken: map[string]bool{}, ill: map[string]bool{}, pods: map[string]*soakPod{}, counts: map[string]int{},
	}
	s.lister.k.Store(k)
	serveLister(t, n.kubeletDir, s.lister)
	n.startAgent(t)
	s.check(true)
	t.Logf("replay with -seed %d", *soakSeed)
	for start := time.Now(); time.Since(start) < duration || s.missing() != "" && time.Since(start) < duration+patience; {
		s.step()
		time.Sleep(time.Duration(s.random.IntN(500)) * time.Millisecond)
		s.check(s.change == nil)
	}
	if err := s.mendAll(); err != nil {
		t.Fatal(err)
	}
	s.check(s.change == nil)
	s.giveOutAll()
	if s.change != nil {
		n.killAgent(t) // else its end may coincide with the removal of stale devices from the spec
	}
	t.Logf("at most %d pods had a GPU at once; what happened: %v", s.most, s.counts)
	if what := s.missing(); what != "" {
		t.Errorf("it never happened: %s", what)
	}
}

// missing is what must happen once at least for the soak to show anything; empty if all has.
func (s *soak) missing() string {
	must := []string{"admitted", "admitted with an init container", "broken"}
	if s.change != nil {
		must = append(must, "changed")
	}
	for _, what := range must {
		if s.counts[what] == 0 {
			return what
		}
	}
	if s.name == "sharing" && s.most < 2 {
		return "two pods on a GPU"
	}
	return ""
}

// step does one thing that happens to nodes.
func (s *soak) step() {
	gpu := s.n.uuids()[s.random.IntN(s.gpus())]
	broken := func(do func() error) func() error {
		return func() error {
			s.broken[gpu], s.ill[gpu] = true, true
			s.counts["broken"]++
			return do()
		}
	}
	fault := func(f simdriver.Fault) func() error {
		f.GPU = gpu
		return broken(func() error { return s.n.driver.Break(f) })
	}
	type action struct {
		name string
		do   func() error
	}
	kinds := [][]action{ // as likely as each other
		{
			{"XID 31", func() error { return s.n.driver.RaiseXID(gpu, 31) }},
			{"XID 9999", func() error { return s.passingXID(gpu) }},
			{"lost", broken(func() error { return s.n.driver.Lose(gpu) })},
			{"failing", fault(simdriver.Fault{Return: unknownError})},
			{"crashing", fault(simdriver.Fault{Crash: true})},
			{"hanging", fault(simdriver.Fault{Hang: time.Hour})},
		},
		{{"spec deleted", s.deleteSpec}, {"socket deleted", s.deleteSocket}, {"kubelet restarted", s.restartKubelet}},
		{{"all mended", s.mendAll}, {"changed", func() error { return s.changed(gpu) }}},
		{{"pod comes", s.podComes}},
		{{"pod comes", s.podComes}},
		{{"pod goes", s.podGoes}},
	}
	kind := kinds[s.random.IntN(len(kinds))]
	next := kind[s.random.IntN(len(kind))]
	s.Logf("%s (%s)", next.name, gpu)
	if err := next.do(); err != nil {
		s.Fatalf("%s: %v", next.name, err)
	}
}

// check waits until all holds that must hold whatever has happened. The kubelet may just be on
// its way to know it. settled is whether what pods have left must be offered again.
func (s *soak) check(settled bool) {
	s.Helper()
	s.await(func() string { return s.wrong(settled) })
}

func (s *soak) await(wrong func() string) {
	s.Helper()
	var last string
	for start := time.Now(); time.Since(start) < patience; time.Sleep(10 * time.Millisecond) {
		s.restartContainers()
		if last = wrong(); last == "" {
			return
		}
	}
	s.Fatalf("still after %s: %s", patience, last)
}

// wrong is what does not hold: no GPU is dropped, the well ones are offered, the broken ones are
// not, and what is offered resolves.
func (s *soak) wrong(settled bool) string {
	if has, _ := s.k.capacity(); s.change == nil && quantity(has) != int64(s.gpus()) {
		return fmt.Sprintf("the kubelet knows %d GPUs", quantity(has))
	}
	if _, err := os.Stat(s.n.spec()); err != nil {
		return err.Error()
	}
	offered := map[string]bool{}
	for resource, devices := range s.k.allocatable() {
		for id := range devices {
			gpu := s.gpuOf(id)
			if gpu == nil {
				return fmt.Sprintf("%s of %s is healthy, and the driver does not have it", id, resource)
			}
			if s.broken[gpu.UUID] {
				return fmt.Sprintf("%s of %s is healthy, and %s is broken", id, resource, gpu.UUID)
			}
			offered[gpu.UUID] = true
			if s.change == nil {
				s.n.resolve(s.T, request{
					cdiDevices:  []string{"gpucdi.dev/gpu=" + id},
					annotations: map[string]string{"cdi.k8s.io/soak": "gpucdi.dev/gpu=" + id},
				})
			}
		}
	}
	for _, gpu := range s.n.driver.State().GPUs {
		empty := gpu.MIGMode == 1 && len(gpu.MIG) == 0
		if settled && !empty && !offered[gpu.UUID] && !s.ill[gpu.UUID] && (s.change == nil || !s.held(gpu)) {
			return gpu.UUID + " has nothing and is not healthy"
		}
	}
	return ""
}

// gpuOf returns the GPU of a device ID; nil if the driver has none of it.
func (s *soak) gpuOf(id string) *simdriver.GPU {
	id, _, _ = strings.Cut(id, "::")
	for _, g := range s.n.driver.State().GPUs {
		if g.UUID == id && g.MIGMode != 1 || slices.ContainsFunc(g.MIG, func(m simdriver.MIGDevice) bool { return m.UUID == id }) {
			return &g
		}
	}
	return nil
}

// held reports whether a pod has a GPU or part of it.
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

// passingXID is a fault that passes. It must be detected unless the driver may just be opened
// anew because of a GPU that is broken, or was until the last step.
func (s *soak) passingXID(gpu string) error {
	s.ill[gpu] = true
	if err := s.n.driver.RaiseXID(gpu, 9999); err != nil || len(s.broken) > 0 || s.change != nil {
		return err
	}
	s.counts["detected XIDs"]++
	s.await(func() string {
		for _, devices := range s.k.allocatable() {
			for id := range devices {
				if of := s.gpuOf(id); of != nil && of.UUID == gpu {
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
	s.lister.k.Store(s.k)
	return nil
}

// podComes may be refused where too few GPUs are free or healthy. The kubelet gives the
// devices of an init container to the container after it.
func (s *soak) podComes() error {
	s.made++
	name := fmt.Sprint("pod-", s.made)
	of := s.soakCase.pods[s.random.IntN(len(s.soakCase.pods))]
	pod := podWith(name, of, 1+s.random.IntN(3))
	if s.random.IntN(2) == 0 {
		init := podWith(name, of, 1+s.random.IntN(3)).Spec.Containers
		init[0].Name = "init"
		pod.Spec.InitContainers = init
	}
	if err := s.k.admit(pod); err != nil {
		s.counts["refused"]++
		return nil
	}
	s.counts["admitted"]++
	if len(pod.Spec.InitContainers) > 0 {
		s.counts["admitted with an init container"]++
	}
	s.pods[name] = &soakPod{Pod: pod, shares: s.replicas(pod)}
	s.restartContainers()
	return nil
}

// replicas reports whether the kubelet has allocated replicas to a pod.
func (s *soak) replicas(pod *v1.Pod) bool {
	for _, devices := range s.k.GetDevices(string(pod.UID), pod.Spec.Containers[0].Name) {
		for id := range devices {
			return strings.Contains(id, "::")
		}
	}
	s.Fatalf("the kubelet has allocated nothing to %s", pod.Name)
	return false
}

// restartContainers starts the containers of all pods once more, and checks that no two pods
// have the same GPU or MIG device then, but for as many as share it.
func (s *soak) restartContainers() {
	s.Helper()
	if _, err := os.Stat(s.n.spec()); err != nil {
		return // a container waits for it
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
		limit := len(pods) // a GPU's node is common to its MIG devices
		if isCapability(node) || slices.ContainsFunc(pods, (*soakPod).whole) {
			limit = 1
		}
		if !slices.ContainsFunc(pods, func(p *soakPod) bool { return !p.shares }) {
			limit = 2
		}
		if len(pods) > limit {
			s.Fatalf("%d pods have %s, at most %d may: %v", len(pods), node, limit, pods)
		}
		s.most = max(s.most, len(pods))
	}
}

// nodesOf starts the containers of a pod and returns the nodes of GPUs and of MIG devices that
// any of them has. The kubelet gives to one what it has given to an init container before it.
func (s *soak) nodesOf(pod *v1.Pod) (nodes []string) {
	s.Helper()
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		r, err := s.k.startContainer(s.Context(), pod, &c)
		if err != nil {
			s.Fatalf("starting %s of %s: %v", c.Name, pod.Name, err)
		}
		for _, node := range s.n.injected(s.T, r) {
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

// whole reports whether the pod has whole GPUs, be they shared or not.
func (p *soakPod) whole() bool { return !slices.ContainsFunc(p.nodes, isCapability) }

func (p *soakPod) String() string {
	return fmt.Sprintf("%s (shares: %t) has %v", p.Name, p.shares, p.nodes)
}

func (s *soak) podGoes() error {
	names := slices.Sorted(maps.Keys(s.pods))
	if len(names) > 0 {
		name := names[s.random.IntN(len(names))]
		s.k.forget(s.pods[name].Pod)
		delete(s.pods, name)
	}
	return nil
}

// changed has the GPUs given out in another way, once those that no pod has are offered in the
// way before.
func (s *soak) changed(gpu string) error {
	if s.change == nil || len(s.pods) == 0 {
		return nil
	}
	s.check(true)
	s.counts["changed"]++
	if err := s.change(s, gpu); err != nil {
		return err
	}
	s.check(false)
	return s.podComes()
}

// changeSharing shares all GPUs, or none any more.
func (s *soak) changeSharing(string) error {
	if s.alone = !s.alone; s.alone {
		s.n.configure(s.T)
	} else {
		s.n.configure(s.T, sharedByTwo)
	}
	s.await(func() string {
		for id := range s.k.allocatable()[string(gpuResource)] {
			if strings.Contains(id, "::") == s.alone {
				return fmt.Sprintf("%s is healthy, and the GPUs are to be had alone: %t", id, s.alone)
			}
		}
		return ""
	})
	return nil
}

// repartition partitions a GPU anew, or no more: one of which pods have parts if there is any.
// The driver does not put a GPU into MIG mode that is in use.
func (s *soak) repartition(gpu string) error {
	var parts []string
	for _, g := range s.n.driver.State().GPUs {
		switch {
		case !s.held(g):
		case g.MIGMode == 1:
			parts = append(parts, g.UUID)
		case g.UUID == gpu:
			return nil
		}
	}
	if len(parts) > 0 {
		gpu = parts[s.random.IntN(len(parts))]
	}
	layouts := [][]string{nil, {"3g.20gb", "3g.20gb"}, slices.Repeat([]string{"1g.5gb"}, 7)}
	layout := layouts[s.random.IntN(len(layouts))]
	if layout == nil {
		return s.n.driver.Unpartition(gpu)
	}
	return s.n.driver.Partition(gpu, layout...)
}

// mendAll ends every fault.
func (s *soak) mendAll() error {
	errs := []error{s.n.driver.Mend()}
	for _, uuid := range s.n.uuids() {
		errs = append(errs, s.n.driver.Return(uuid))
	}
	clear(s.broken)
	clear(s.ill)
	return errors.Join(errs...)
}

// giveOutAll ends all pods and gives all GPUs out whole, each once.
func (s *soak) giveOutAll() {
	s.Helper()
	for _, pod := range s.pods {
		s.k.forget(pod.Pod)
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
	whole := slices.Sorted(slices.Values(s.n.uuids()))
	s.await(func() string {
		offered := slices.Sorted(maps.Keys(s.k.allocatable()[string(gpuResource)]))
		if !slices.Equal(offered, whole) {
			return fmt.Sprintf("%v are offered, want %v", offered, whole)
		}
		return ""
	})
	s.n.admitted(s.T, s.k, "last", s.gpus())
}

// currentHolders answers as the kubelet that runs at the moment does about its pods.
type currentHolders struct {
	podresources.UnimplementedPodResourcesListerServer
	k atomic.Pointer[kubelet]
}

func (c *currentHolders) List(ctx context.Context, r *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return (&holders{k: c.k.Load()}).List(ctx, r)
}
