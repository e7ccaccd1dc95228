package allocator

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// The world of the model test consists of one GPU, its kubelet, runtime and pods, and an agent that runs the real Next
// and Gate. The tests perform its actions in any order.

// tick is the unit of time. No tick passes while a step that settle bounds has been pending for a tick.
const tick = settle / 2

// lag is listLag in ticks.
const lag = int32(listLag / tick)

const gpu0 = "GPU-0"

// parts are all parts of the GPU. Some MIG devices of different layouts have equal GPU instance IDs, and therefore
// equal UUIDs.
var parts = [...]Part{
	{GPU: gpu0, Extent: ExtentWhole},
	{GPU: gpu0, Extent: ExtentWhole, Share: Share{Class: TimeSliced, Count: 2}},
	{GPU: gpu0, Extent: ExtentWhole, Share: Share{Class: TimeSliced, Count: 3}},
	{GPU: gpu0, Extent: ExtentMIG, GPUInstance: 1, Placement: gpu.Placement{Start: 0, Size: 4}},
	{GPU: gpu0, Extent: ExtentMIG, GPUInstance: 2, Placement: gpu.Placement{Start: 4, Size: 4}},
	{GPU: gpu0, Extent: ExtentMIG, GPUInstance: 1, Placement: gpu.Placement{Start: 0, Size: 8}},
	{GPU: gpu0, Extent: ExtentMIG, GPUInstance: 1, Placement: gpu.Placement{Start: 4, Size: 4}},
	{GPU: gpu0, Extent: ExtentWhole, Share: Share{Class: MemoryLimited, Unit: ShareMemory}},
}

// sharedPart is the index of the part that is the GPU shared by claims. A claim gets all or half of the GPU.
const sharedPart = uint8(len(parts) - 1)

// hardwareUse is the hardware that each part uses: sixths of each of the eight memory slices, and of the device nodes
// of GPU instances 1 and 2. It does not depend on the overlap rules under test.
var hardwareUse = [len(parts)][10]uint8{
	{6, 6, 6, 6, 6, 6, 6, 6},
	{3, 3, 3, 3, 3, 3, 3, 3},
	{2, 2, 2, 2, 2, 2, 2, 2},
	{6, 6, 6, 6, 0, 0, 0, 0, 6, 0},
	{0, 0, 0, 0, 6, 6, 6, 6, 0, 6},
	{6, 6, 6, 6, 6, 6, 6, 6, 6, 0},
	{0, 0, 0, 0, 6, 6, 6, 6, 6, 0},
	{3, 3, 3, 3, 3, 3, 3, 3},
}

// outlets is the number of outlets of the device plugin: the GPU, the same under another name, two MIG profiles, and
// replicas of the GPU.
const outlets = 5

// sliceOutlet follows the outlets of the device plugin. Its IDs are those of the GPU and, from firstMIGKey on, of its MIG
// devices.
const (
	sliceOutlet = outlets
	sliceKey    = firstMIGKey - 1
	firstMIGKey = uint8(len(keys) - 2)
)

var outletNames = [outlets]string{"a", "b", "m", "n", "s"}

// keys are all IDs of the outlets, in the order of the ledger.
var keys = [...]struct {
	Key
	outlet uint8
}{
	{Key{"a", gpu0}, 0},
	{Key{"b", gpu0}, 1},
	{Key{"m", "MIG-1"}, 2},
	{Key{"m", "MIG-2"}, 2},
	{Key{"n", "MIG-1"}, 3},
	{Key{"s", gpu0 + "::0"}, 4},
	{Key{"s", gpu0 + "::1"}, 4},
	{Key{"s", gpu0 + "::2"}, 4},
	{Key{SliceOutlet, gpu0}, sliceOutlet},
	{Key{SliceOutlet, "MIG-1"}, sliceOutlet},
	{Key{SliceOutlet, "MIG-2"}, sliceOutlet},
}

// sliced reports whether a key is one of the slice.
func sliced(key uint8) bool { return keys[key].outlet == sliceOutlet }

// mask is a set of keys, by index.
type mask uint16

func bit(k uint8) mask { return 1 << k }

var ofOutlet [outlets + 1]mask

var keyIndex = map[Key]uint8{}

func init() {
	for i, k := range keys {
		ofOutlet[k.outlet] |= bit(uint8(i))
		keyIndex[k.Key] = uint8(i)
	}
}

// planned is a plan: keys and their parts.
type planned []struct{ key, part uint8 }

// The layouts of the GPU.
const (
	layoutWhole = iota // MIG mode is disabled
	layoutTwo          // two MIG devices
	layoutBig          // one MIG device, of all memory slices
	layoutMoved        // one MIG device, with the UUID of layoutBig's device and the placement of layoutTwo's second device
	layoutLost         // the GPU is gone
	layouts
)

// configs is the number of configs: default, renamed, 2 replicas, 3 replicas, no resource, GPUs and MIG devices by claims,
// shared GPUs by claims.
const (
	configs     = 7
	configSlice = 5
)

// slicedMIG are the MIG devices of each layout in the slice, where one key has different parts.
var slicedMIG = [layouts]planned{
	layoutTwo:   {{firstMIGKey, 3}, {firstMIGKey + 1, 4}},
	layoutBig:   {{firstMIGKey, 5}},
	layoutMoved: {{firstMIGKey, 6}},
}

// migPart returns the part of the MIG device of the layout that has the ID of a key of the slice.
func (w *world) migPart(key uint8) (part uint8, found bool) {
	for _, o := range slicedMIG[w.layout] {
		if o.key == key {
			return o.part, true
		}
	}
	return 0, false
}

func planOf(config, layout uint8) planned {
	if config == 4 || layout == layoutLost {
		return nil
	}
	if config == configSlice && layout != layoutWhole {
		return slicedMIG[layout]
	}
	switch layout {
	case layoutTwo:
		return planned{{2, 3}, {3, 4}}
	case layoutBig:
		return planned{{4, 5}}
	case layoutMoved:
		return planned{{4, 6}}
	}
	return [...]planned{{{0, 0}}, {{1, 0}}, {{5, 1}, {6, 1}}, {{5, 2}, {6, 2}, {7, 2}}, nil, {{sliceKey, 0}}, {{sliceKey, sharedPart}}}[config]
}

// plan returns the plan for the config and the layout. It has the devices that claims need in the slice, as Assign does.
func (w *world) plan() planned {
	plan := planOf(w.config, w.layout)
	requested, _ := w.gate.Requested()
	for _, id := range requested {
		slice := keyIndex[Key{SliceOutlet, id}]
		i := slices.IndexFunc(plan, func(o struct{ key, part uint8 }) bool { return DeviceOf(keys[o.key].ID) == id })
		if i < 0 || sliced(plan[i].key) {
			continue
		}
		part := plan[i].part
		if slice == sliceKey {
			part = 0
		}
		plan = slices.DeleteFunc(slices.Clone(plan), func(o struct{ key, part uint8 }) bool { return DeviceOf(keys[o.key].ID) == id })
		plan = append(plan, struct{ key, part uint8 }{slice, part})
	}
	return plan
}

// wants returns the IDs of a plan.
func (p planned) wants(ready bool) (wants []Want) {
	for _, o := range p {
		wants = append(wants, Want{Key: keys[o.key].Key, Part: parts[o.part], Capacity: capacityOf(o.part), Ready: ready})
	}
	return wants
}

func capacityOf(part uint8) Amount {
	if part == sharedPart {
		return Amount{Cores: WholeCores}
	}
	return Amount{}
}

var present = [layouts][]Present{
	{{Device: parts[0]}}, {{Device: parts[3]}, {Device: parts[4]}}, {{Device: parts[5]}}, {{Device: parts[6]}}, nil,
}

// The stages of a pod's admission. settle bounds the steps from granted to inserted and from writing to admitted, and
// listLag the step from selected to granted. Hooks and other plugins can delay the step from inserted to writing.
const (
	idle     = iota // not in admission, or rejected
	selected        // the kubelet has selected a device
	granted         // the agent has granted the device
	inserted        // the device is in the kubelet's records
	writing         // a checkpoint with the device is being written
	admitted        // the kubelet may start containers
)

// The states of a pod's container.
const (
	absent = iota
	creating
	running
)

// The states of a pod in the kubelet's record of its claim.
const (
	unreferenced = iota // the claim is not prepared for the pod, or the kubelet has removed the pod
	referenced          // the kubelet has restarted, and prepares the claim again for the next pod
	prepared            // pods that join the claim start without a call to the agent
)

// pod is a pod with one container that requests a device.
type pod struct {
	uid       uint8 // 0: no pod
	stage     uint8
	container uint8
	key, part uint8
	claim     uint8 // UID of the first pod of its claim; 0 if it has none, or outlives it
	former    uint8 // claim that it outlives
	reference uint8 // in the kubelet's record of the claim
	half      bool  // its claim is for half of the GPU
	joined    bool  // it joined its claim while that was prepared, so that the agent may not know the pod
	active    bool  // in the API and not terminated
	isInit    bool  // the container is an init container
	hangs     bool  // delayed by hooks, other plugins or the runtime
	holds     bool  // may use its part, now or later
	unknown   bool  // the agent has lost its state since the device was selected
	since     int32 // tick at which it was selected, granted, prepared or unprepared, or its container began to start
	sandbox   int32 // tick at which its sandbox was created
}

// record is an ID in the kubelet's records.
type record struct{ uid, key uint8 }

// checkpointFile is the content of a checkpoint.
type checkpointFile struct {
	records    [6]record
	registered mask
}

// write is a checkpoint that is not yet renamed into place.
type write struct {
	valid bool
	pod   uint8 // whose admission waits for it; 0 for none
	at    int32 // tick of the snapshot
	file  checkpointFile
}

// message is a list in transit to the kubelet.
type message struct {
	valid           bool
	listed, healthy mask
	at              int32 // tick at which it was sent, or its stream ended
}

// stream is the ListAndWatch stream of an outlet.
type stream struct {
	open     bool
	sentList bool
	since    int32
	sent     int32
	last     message    // last sent
	queue    [2]message // not processed yet
	stale    message    // list of the previous stream that is not processed yet
}

// response is the evidence that a source returns.
type response struct {
	valid               bool
	requested, received int32
	keys                mask
	version             uint16
	file                checkpointFile
	containers          [podSlots]record // UID and part
	sandboxes           [podSlots]sandbox
	references          references
}

// sandbox is a ready sandbox of a pod.
type sandbox struct {
	uid     uint8
	created int32
}

// references are the kubelet's records of claims: UIDs of pods, with their claims as keys.
type references [podSlots]record

const podSlots = 3

// The sources of evidence.
const (
	allocatable = iota
	podResources
	checkpoint
	containers
	allocations
	sources
)

// world is the whole state of the test. clone copies it.
type world struct {
	state
	ledger    Ledger
	gate      *Gate
	saved     Saved
	todo      Todo
	violation string // first violated property
}

type state struct {
	tick           int32
	config, layout uint8
	durable        bool  // the CDI spec of the layout is on disk
	uids           uint8 // last UID of a pod

	// The kubelet.
	ready, slow         bool // slow: processes lists as late as possible
	records             [6]record
	allocated           mask
	healthy, registered mask
	disk                checkpointFile
	version             uint16
	writes              [3]write
	streams             [outlets]stream
	socket              bool // a socket of the agent is in the device-plugins directory
	pods                [podSlots]pod

	// The agent.
	parts          [len(keys)]uint8 // of the ledger's entry for each key
	slice          poolVersion      // acknowledged by the API server
	scheduled      poolVersion      // received by the scheduler
	listed, offers mask
	checkpointed   [6]record         // the records of the checkpoint at the latest reconcile
	responses      [sources]response // delivered
	requested      [sources]response // not delivered yet
}

var epoch = time.Unix(1_000_000, 0).UTC()

func stamp(at int32) time.Time { return epoch.Add(time.Duration(at) * tick) }

func newWorld() *world {
	w := &world{}
	w.ready, w.durable = true, true
	w.ledger = Start(nil, true, w.now())
	w.newGate()
	return w
}

func (w *world) now() time.Time { return stamp(w.tick) }

func (w *world) newGate() {
	w.gate = NewGate(w.now)
}

func (w *world) clone() *world {
	c := *w
	c.newGate()
	c.gate.seq, c.gate.reads = w.gate.seq, w.gate.reads
	for k, e := range w.gate.entries {
		copied := *e
		c.gate.entries[k] = &copied
	}
	maps.Copy(c.gate.claims, w.gate.claims)
	maps.Copy(c.gate.requested, w.gate.requested)
	return &c
}

func (w *world) fail(format string, args ...any) {
	if w.violation == "" {
		w.violation = fmt.Sprintf(format, args...)
	}
}

// checkAllocated fails if hardware is allocated twice. Pods with the same key of the device plugin count once, because
// the kubelet allocates the device of a force-deleted pod to the next one. So do pods of a claim.
func (w *world) checkAllocated(doing string) { w.checkHardware(doing, [10]uint8{}, 0) }

// checkFree fails if a key becomes available while pods hold its hardware through other keys.
func (w *world) checkFree(key uint8) {
	part := w.parts[key]
	use := hardwareUse[part]
	if part == sharedPart {
		use = hardwareUse[0]
	}
	doing := keys[key].Outlet + " becomes available"
	w.checkHardware(doing, use, bit(key))
	if parts[part].Extent == ExtentWhole && slices.ContainsFunc(w.pods[:], w.lacksDevice) {
		w.fail("%s: a MIG device of the GPU is allocated: %s", doing, w.holders())
	}
}

func (w *world) checkHardware(doing string, sum [10]uint8, seen mask) {
	for i := range w.pods {
		p := w.pods[i]
		if !p.holds || seen&bit(p.key) != 0 || w.counted(i) || w.lacksDevice(p) {
			continue
		}
		if !sliced(p.key) {
			seen |= bit(p.key)
		}
		for j, used := range hardwareUse[p.part] {
			if sum[j] += used; sum[j] > 6 {
				w.fail("%s: hardware is allocated twice: %s", doing, w.holders())
				return
			}
		}
	}
}

// lacksDevice reports whether the MIG device of a pod's claim does not exist, so that no container can start with it. The
// claim excludes the GPU, but no other MIG device: their layout contains both or only one of them. An agent without state
// cannot tell their parts, since it assumes that a UUID stands for the present device.
func (w *world) lacksDevice(p pod) bool {
	_, exists := w.migPart(p.key)
	return p.holds && p.key >= firstMIGKey && p.container == absent && !exists
}

// counted reports whether a pod before the i-th one holds the same claim.
func (w *world) counted(i int) bool {
	claim := w.pods[i].sharedClaim()
	return claim != 0 && slices.ContainsFunc(w.pods[:i], func(p pod) bool { return p.holds && p.sharedClaim() == claim })
}

// sharedClaim returns the claim of a pod, or the one that it outlives; 0 if there is none. A claim for a part of the GPU
// is for one pod at a time, so it is not shared with pods that outlive it.
func (p pod) sharedClaim() uint8 {
	if p.half {
		return p.claim
	}
	return cmp.Or(p.claim, p.former)
}

func (w *world) holders() string {
	s := ""
	for _, p := range w.pods {
		if p.holds {
			s += fmt.Sprintf("[pod %d holds %v part %d] ", p.uid, keys[p.key].Key, p.part)
		}
	}
	return s
}
