// The race detector makes the simulation of thousands of agents too slow.
//go:build !race

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const (
	// fleetSize is the number of agents, and fleetLimit the maximum that may send requests in the same second.
	fleetSize  = 5000
	fleetLimit = fleetSize / 100
	// fleetGroup is the number of agents that are simulated at the same time. Agents do not affect each other, so the
	// sum over all groups is the traffic of the fleet.
	fleetGroup = 250
)

// Times since the start of the simulation.
const (
	driverStops = 12 * time.Minute
	driverLoads = driverStops + 20*time.Second
	fleetEnd    = driverLoads + 6*time.Minute
)

// second counts the traffic of the API server in one second of the simulation.
type second struct {
	agents          int // that sent a request
	routineAgents   int // that sent a request that is not urgent
	requests, bytes int
}

// fleet counts the requests of all agents by second.
type fleet [fleetEnd/time.Second + 1]second

// between sums the requests and bytes of an interval.
func (f *fleet) between(from, to time.Duration) (requests, bytes int) {
	for _, s := range f[from/time.Second : to/time.Second] {
		requests += s.requests
		bytes += s.bytes
	}
	return requests, bytes
}

// fleetAPI is the API server that one agent uses, with the slices of its node.
type fleetAPI struct {
	begin time.Time

	mu      sync.Mutex
	seconds map[int]*agentSecond
	version int
	slices  map[string]object
}

// agentSecond counts the requests of one agent in a second.
type agentSecond struct {
	requests, bytes int
	routine         bool
}

// now returns the current second. The caller holds the lock.
func (f *fleetAPI) now() *agentSecond {
	at := int(time.Since(f.begin) / time.Second)
	if f.seconds[at] == nil {
		f.seconds[at] = &agentSecond{}
	}
	return f.seconds[at]
}

// countedConn counts the bytes of both directions.
type countedConn struct {
	net.Conn
	api *fleetAPI
}

func (c countedConn) Read(b []byte) (int, error)  { return c.api.transferred(c.Conn.Read(b)) }
func (c countedConn) Write(b []byte) (int, error) { return c.api.transferred(c.Conn.Write(b)) }

func (f *fleetAPI) transferred(n int, err error) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now().bytes += n
	return n, err
}

// managed is about as large as the managed fields of an object.
var managed = []object{{"manager": "kubelet", "fieldsV1": strings.Repeat("f", 3000)}}

func (f *fleetAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	f.mu.Lock()
	now := f.now()
	now.requests++
	isSlice, isWatch := strings.HasPrefix(r.URL.Path, slicesPath), r.URL.Query().Get("watch") != ""
	// In this simulation, all labels after the start and all Normal Events wait for the agent's slot (see Client.Spread).
	now.routine = now.routine || r.Method == http.MethodPatch || strings.Contains(string(body), `"Normal"`)
	f.mu.Unlock()
	switch {
	case isWatch:
		timeout, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(time.Duration(timeout) * time.Second):
		case <-r.Context().Done():
		}
	case isSlice && r.Method == http.MethodGet:
		respondJSON(w, f.list())
	case isSlice:
		respondJSON(w, f.store(body))
	default: // a Node or an Event
		respondJSON(w, object{"metadata": object{"name": "node", "uid": "node-uid", "managedFields": managed}})
	}
}

func (f *fleetAPI) list() object {
	f.mu.Lock()
	defer f.mu.Unlock()
	items := []object{}
	for _, s := range f.slices {
		items = append(items, s)
	}
	return object{"metadata": object{"resourceVersion": strconv.Itoa(f.version)}, "items": items}
}

// store stores a slice that was created or updated.
func (f *fleetAPI) store(body []byte) object {
	slice, _ := decodeObject(body)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	m := meta(slice)
	m["uid"], m["resourceVersion"], m["managedFields"] = "slice-uid", strconv.Itoa(f.version), managed
	f.slices[text(m, "name")] = slice
	return slice
}

// agent is an agent reduced to its API clients.
type agent struct {
	pool   *Pool
	labels *NodeLabels
	events *EventRecorder
}

func newAgent(client *Client, node string) *agent {
	log := slog.New(slog.DiscardHandler)
	return &agent{
		pool: NewPool(client, testDriver, node, log),
		// Only the first labels are urgent.
		labels: NewNodeLabels(client, node, func(before, _ map[string]string) bool { return len(before) > 0 }, log),
		events: NewEventRecorder(node, client, nodeEvents, log),
	}
}

// run runs the clients until ctx ends.
func (a *agent) run(ctx context.Context) {
	var running sync.WaitGroup
	for _, run := range []func(context.Context){a.pool.Run, a.labels.Run, a.events.Run} {
		running.Go(func() { run(ctx) })
	}
	running.Wait()
}

// fleetDevices returns GPUs with about as many attributes as the agent publishes. version is a semantic version, which
// has no leading zeros.
func fleetDevices(count int, version string, taints ...Taint) (devices []Device) {
	for i := range count {
		d := Device{Name: fmt.Sprint("gpu-", i), Capacity: map[string]Capacity{"memory": Bytes(80 << 30)}, Taints: taints,
			Attributes: map[string]Attribute{"driverVersion": VersionAttribute(version)}}
		for j := range 14 {
			d.Attributes[fmt.Sprint("attribute", j)] = StringAttribute("0123456789abcdef")
		}
		devices = append(devices, d)
	}
	return devices
}

func fleetLabels(version string) map[string]string {
	labels := map[string]string{"nvidia.com/cuda.driver-version.full": version}
	for i := range 25 {
		labels[fmt.Sprintf("nvidia.com/gpu.property-%d", i)] = "NVIDIA-H100-80GB-HBM3"
	}
	return labels
}

// simulate runs an agent on a node whose slices an earlier agent has published: it starts at the same time as all
// others, idles, and its driver is replaced.
func simulate(begin time.Time, credentials, node string, gpus int) *fleetAPI {
	api := &fleetAPI{begin: begin, seconds: map[int]*agentSecond{}, slices: map[string]object{}}
	l := &listener{make(chan net.Conn), make(chan struct{})}
	server := &http.Server{Handler: api, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go func() { _ = server.Serve(l) }()
	client := &Client{host: "http://api", credentials: credentials, dial: pipes(func(conn net.Conn) {
		select {
		case l.conns <- countedConn{conn, api}:
		case <-l.closed:
			_ = conn.Close()
		}
	})}
	defer func() {
		client.CloseIdle()
		_ = server.Close()
	}()
	before := newAgent(client, node)
	spec, _ := json.Marshal(sliceObject{APIVersion: sliceAPIVersion, Kind: sliceKind,
		Metadata: sliceMetadata{Name: sliceName(testDriver, node, 0), Owners: []owner{{Kind: "Node", Name: node}}},
		Spec:     before.pool.specs(fleetDevices(gpus, "580.95.5"))[0]})
	api.store(spec)

	a := newAgent(client, node)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { a.run(ctx) })
	a.pool.Want(fleetDevices(gpus, "580.95.5"))
	a.labels.Want(fleetLabels("580.95.05"))
	time.Sleep(time.Until(begin.Add(driverStops)))
	a.pool.Want(fleetDevices(gpus, "580.95.5", Taint{Key: "driver", Effect: NoSchedule}))
	a.labels.Want(nil)
	a.events.Record(Event{Type: Warning, Reason: "GPUDriverFailed", Message: "all GPUs"})
	time.Sleep(time.Until(begin.Add(driverLoads)))
	a.pool.Want(fleetDevices(gpus, "590.10.1"))
	a.labels.Want(fleetLabels("590.10.01"))
	a.events.Record(Event{Type: Normal, Reason: "GPUHealthy", Message: "all GPUs", Routine: true})
	a.events.Record(Event{Type: Normal, Reason: "GPUDriverChanged", Message: "590.10.01", Routine: true})
	time.Sleep(time.Until(begin.Add(fleetEnd)))
	stop()
	running.Wait()
	return api
}

// add adds the counts of an agent.
func (f *fleet) add(api *fleetAPI) {
	api.mu.Lock()
	defer api.mu.Unlock()
	for at, s := range api.seconds {
		if at >= len(f) {
			continue
		}
		if s.requests > 0 {
			f[at].agents++
		}
		if s.routine {
			f[at].routineAgents++
		}
		f[at].requests += s.requests
		f[at].bytes += s.bytes
	}
}

// A fleet of agents that start at the same moment, and whose drivers are replaced at the same moment, spreads all
// requests except the urgent ones: at the start, and for ResourceSlices and Warnings when the driver stops or returns.
func TestFleet(t *testing.T) {
	credentials := testCredentials(t)
	var counts fleet
	for group := range fleetSize / fleetGroup {
		synctest.Test(t, func(*testing.T) {
			begin := time.Now()
			apis := make([]*fleetAPI, fleetGroup)
			var running sync.WaitGroup
			for i := range apis {
				running.Go(func() { apis[i] = simulate(begin, credentials, fmt.Sprintf("node-%d-%d", group, i), 1) })
			}
			running.Wait()
			for _, api := range apis {
				counts.add(api)
			}
		})
	}
	urgent := map[time.Duration]bool{0: true, driverStops: true, driverLoads: true}
	most := second{}
	for at, s := range counts {
		now := time.Duration(at) * time.Second
		if s.routineAgents > fleetLimit && now > 0 {
			t.Errorf("%s: %d agents send requests that are not urgent, want at most %d", now, s.routineAgents, fleetLimit)
		}
		if urgent[now] {
			t.Logf("%s: %+v", now, s)
			continue
		}
		most = second{max(most.agents, s.agents), max(most.routineAgents, s.routineAgents), max(most.requests, s.requests), max(most.bytes, s.bytes)}
		if s.agents > fleetLimit {
			t.Errorf("%s: %d agents send requests, want at most %d", now, s.agents, fleetLimit)
		}
	}
	t.Logf("maximum of the other seconds: %+v", most)
}

// The log has the requests and bytes of an agent with eight GPUs for docs/fleet.md. The requests are bounded.
func TestTraffic(t *testing.T) {
	const gpus, idle = 8, 10 * time.Minute
	var counts fleet
	credentials := testCredentials(t)
	routine := func(at time.Duration) bool { return counts[at/time.Second].routineAgents > 0 }
	// Again if the random slot is in the second in which the driver stops or returns.
	for again := true; again; again = routine(driverStops) || routine(driverLoads) {
		counts = fleet{}
		synctest.Test(t, func(*testing.T) { counts.add(simulate(time.Now(), credentials, "node", gpus)) })
	}
	for _, phase := range []struct {
		name     string
		from, to time.Duration
		requests int // maximum
	}{
		{"start", 0, time.Second, 3},
		{"idle for ten minutes", time.Second, time.Second + idle, 6},
		{"driver stops", driverStops, driverStops + time.Second, 2},
		{"driver returns", driverLoads, driverLoads + time.Second, 1},
		{"five minutes after it", driverLoads + time.Second, driverLoads + time.Second + DefaultSpread, 5},
	} {
		requests, bytes := counts.between(phase.from, phase.to)
		t.Logf("%-24s %2d requests %6d bytes", phase.name, requests, bytes)
		if requests > phase.requests {
			t.Errorf("%s: %d requests, want at most %d", phase.name, requests, phase.requests)
		}
	}
}
