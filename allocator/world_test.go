package allocator

import (
	"fmt"
	"time"

	"github.com/gpucdi/gpucdi/gpu"
)

// The world of the model test: one GPU, its kubelet, runtime and pods, and an agent
// that drives the real Next and Gate. A step is an action that may happen now; the
// order is up to the test. A tick of time is half a settle, and cannot pass while a
// step is due that takes less than a settle: one that began a tick before.

const tick = settle / 2

// lag is listLag in ticks.
const lag = int32(listLag / tick)

const gpu0 = "GPU-0"

// parts are the parts that the GPU ever has. Two layouts give the same numbers,
// and so the same UUID, to other instances.
var parts = [...]Part{
	{GPU: gpu0, Extent: ExtentWhole},
	{GPU: gpu0, Extent: ExtentWhole, Share: Share{TimeSliced, 2}},
	{GPU: gpu0, Extent: ExtentWhole, Share: Share{TimeSliced, 3}},
	{GPU: gpu0, Extent: ExtentMIG, GPUInstance: 1, Placement: gpu.Placement{Start: 0, Size: 4}},
	{GPU: gpu0, Extent: ExtentMIG, GPUInstance: 2, Placement: gpu.Placement{Start: 4, Size: 4}},
	{GPU: gpu0, Extent: ExtentMIG, GPUInstance: 1, Placement: gpu.Placement{Start: 0, Size: 8}},
	{GPU: gpu0, Extent: ExtentMIG, GPUInstance: 1, Placement: gpu.Placement{Start: 4, Size: 4}},
}

// truth is what a part takes of the hardware, independently of Overlaps: sixths
// of the eight memory slices, and of the nodes of GPU instances 1 and 2.
var truth = [len(parts)][10]uint8{
	{6, 6, 6, 6, 6, 6, 6, 6},
	{3, 3, 3, 3, 3, 3, 3, 3},
	{2, 2, 2, 2, 2, 2, 2, 2},
	{6, 6, 6, 6, 0, 0, 0, 0, 6, 0},
	{0, 0, 0, 0, 6, 6, 6, 6, 0, 6},
	{6, 6, 6, 6, 6, 6, 6, 6, 6, 0},
	{0, 0, 0, 0, 6, 6, 6, 6, 6, 0},
}

const outlets = 5

var outletNames = [outlets]string{"a", "b", "m", "n", "s"}

// keys are the IDs that the outlets ever offer, in the order of the ledger.
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
}

type mask uint8 // of keys

func bit(k uint8) mask { return 1 << k }

var ofOutlet [outlets]mask

var keyIndex = map[Key]uint8{}

func init() {
	for i, k := range keys {
		ofOutlet[k.outlet] |= bit(uint8(i))
		keyIndex[k.Key] = uint8(i)
	}
}

// offered is a plan: keys and their parts.
type offered []struct{ key, part uint8 }

// layouts of the GPU: whole, two ways with one MIG device, one with two, lost.
const (
	layoutWhole = iota
	layoutTwo
	layoutBig
	layoutMoved
	layoutLost
	layouts
)

// configs: plain, renamed, shared by 2, shared by 3, excluded.
const configs = 5

func planOf(config, layout uint8) offered {
	if config == 4 || layout == layoutLost {
		return nil
	}
	switch layout {
	case layoutTwo:
		return offered{{2, 3}, {3, 4}}
	case layoutBig:
		return offered{{4, 5}}
	case layoutMoved:
		return offered{{4, 6}}
	}
	return [...]offered{{{0, 0}}, {{1, 0}}, {{5, 1}, {6, 1}}, {{5, 2}, {6, 2}, {7, 2}}}[config]
}

var plans [configs][layouts][]Want

var present = [layouts][]Present{
	{{Device: parts[0]}}, {{Device: parts[3]}, {Device: parts[4]}}, {{Device: parts[5]}}, {{Device: parts[6]}}, nil,
}

func init() {
	for c := range plans {
		for l := range plans[c] {
			for _, o := range planOf(uint8(c), uint8(l)) {
				plans[c][l] = append(plans[c][l], Want{Key: keys[o.key].Key, Part: parts[o.part], Durable: true})
			}
		}
	}
}

// The stages of a pod's admission. Only the one from answered to inserted is
// bounded; hooks and other plugins can hang before and after it.
const (
	idle     = iota // not in admission, or rejected
	selected        // the kubelet has chosen a device
	answered        // the agent has granted it
	inserted        // it is in the kubelet's books
	writing         // a snapshot with it is on its way to disk
	admitted        // the kubelet may start containers
)

// The states of a pod's container.
const (
	absent = iota
	creating
	running
)

// pod is a pod with one container that wants a device.
type pod struct {
	uid       uint8 // 0: no pod
	stage     uint8
	container uint8
	key, part uint8
	active    bool // in the API, and not ended
	isInit    bool // the container is an init container
	hangs     bool // hooks, other plugins and the runtime take their time
	has       bool // may use its part, now or later
	since     int32
}

// record is an ID in the kubelet's books.
type record struct{ uid, key uint8 }

// bookFile is a checkpoint.
type bookFile struct {
	books      [6]record
	registered mask
}

// write is a checkpoint that is not renamed into place yet.
type write struct {
	valid bool
	pod   uint8 // whose admission waits for it; 0: none
	at    int32
	file  bookFile
}

// message is a list on its way to the kubelet.
type message struct {
	valid           bool
	listed, healthy mask
	at              int32
}

// stream is the ListAndWatch stream of an outlet.
type stream struct {
	open, told bool // told: a list was sent
	since      int32
	sent       int32
	last       message    // that was sent
	queue      [2]message // not processed yet
	ghost      message    // of the stream before: the kubelet has received it
}

// answer is what a source answered, and what it is about to.
type answer struct {
	valid           bool
	asked, answered int32
	keys            mask
	version         uint16
	file            bookFile
	containers      [podSlots]record // uid and part
	sandboxes       [podSlots]uint8  // uids
}

const podSlots = 3

// The sources of evidence.
const (
	allocatable = iota
	podResources
	checkpoint
	containers
	sources
)

// world is everything. It is a value but for its gate: clone copies it.
type world struct {
	state
	ledger Ledger
	gate   *Gate
	saved  Saved
	todo   Todo
	broken string // the property that does not hold
}

type state struct {
	tick           int32
	config, layout uint8
	durable        bool
	uids           uint8

	// The kubelet.
	ready, slow    bool // slow: processes lists as late as it may
	books          [6]record
	allocated      mask
	healthy, known mask
	disk           bookFile
	version        uint16
	writes         [3]write
	streams        [outlets]stream
	socket         bool // one of ours is in the plugin directory
	pods           [podSlots]pod

	// The agent.
	parts          [len(keys)]uint8 // of the ledger's entries
	listed, offers mask
	answers        [sources]answer // delivered
	asked          [sources]answer // not delivered yet
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
	w.gate = NewGate(nil)
	w.gate.now = func() time.Time { return stamp(w.tick) }
}

func (w *world) clone() *world {
	c := *w
	c.newGate()
	c.gate.seq = w.gate.seq
	for k, d := range w.gate.doors {
		copied := *d
		c.gate.doors[k] = &copied
	}
	return &c
}

func (w *world) fail(format string, args ...any) {
	if w.broken == "" {
		w.broken = fmt.Sprintf(format, args...)
	}
}

// checkTruth fails if the hardware is used twice. Who holds the same ID does not
// count: the kubelet gives the ID of a force-deleted pod to the next one.
func (w *world) checkTruth(doing string) { w.checkHardware(doing, [10]uint8{}, 0) }

// checkFree fails if a pod has hardware of another key that becomes available.
func (w *world) checkFree(key uint8) {
	w.checkHardware(keys[key].Outlet+" becomes available", truth[w.parts[key]], bit(key))
}

func (w *world) checkHardware(doing string, sum [10]uint8, seen mask) {
	for i := range w.pods {
		p := &w.pods[i]
		if !p.has || seen&bit(p.key) != 0 {
			continue
		}
		seen |= bit(p.key)
		for j, used := range truth[p.part] {
			if sum[j] += used; sum[j] > 6 {
				w.fail("%s: hardware is used twice: %s", doing, w.holders())
				return
			}
		}
	}
}

func (w *world) holders() string {
	s := ""
	for _, p := range w.pods {
		if p.has {
			s += fmt.Sprintf("[pod %d has %v part %d] ", p.uid, keys[p.key].Key, p.part)
		}
	}
	return s
}
