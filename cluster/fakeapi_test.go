package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// object is a decoded API object.
type object = map[string]any

// fakeAPI is an API server with ResourceSlices and a Node. It works in a synctest bubble.
type fakeAPI struct {
	t      *testing.T
	client *Client
	server *http.Server

	mu       sync.Mutex
	version  int
	slices   map[string]object
	watchers map[*watcher]bool
	history  []pastEvent
	muted    bool     // events are lost
	writes   []string // "POST name"
	nodeUID  string
	conns    map[net.Conn]bool

	down    bool                                                     // refuse connections
	gate    map[string]bool                                          // fields of devices to drop, as with a disabled feature gate
	invalid func(device object) string                               // reason why a device is invalid; "" if it is valid
	before  func(w http.ResponseWriter, r *http.Request) (done bool) // called without the lock
}

type watcher struct {
	driver, node string
	events       chan string
}

// pastEvent is an event for watches that start at an earlier version.
type pastEvent struct {
	version int
	slice   object
	line    string
}

func (wt *watcher) selects(s object) bool {
	return text(spec(s), "driver") == wt.driver && text(spec(s), "nodeName") == wt.node
}

// listener accepts connections of a dialer in the same process.
type listener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *listener) Close() error   { close(l.closed); return nil }
func (l *listener) Addr() net.Addr { return &net.UnixAddr{} }

// newFakeAPI starts an API server. It must be called, and stop must be called, in the bubble of the test.
func newFakeAPI(t *testing.T, credentials string) (api *fakeAPI, stop func()) {
	api = &fakeAPI{
		t: t, version: 100, nodeUID: "node-uid-1",
		slices: map[string]object{}, watchers: map[*watcher]bool{}, conns: map[net.Conn]bool{}, gate: map[string]bool{},
	}
	l := &listener{make(chan net.Conn), make(chan struct{})}
	api.server = &http.Server{Handler: api, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go func() { _ = api.server.Serve(l) }()
	api.client = &Client{host: "http://api", credentials: credentials, dial: pipes(func(server net.Conn) {
		api.mu.Lock()
		down := api.down
		if !down {
			api.conns[server] = true
		}
		api.mu.Unlock()
		if down {
			_ = server.Close()
			return
		}
		select {
		case l.conns <- server:
		case <-l.closed:
			_ = server.Close()
		}
	})}
	return api, func() {
		api.client.CloseIdle()
		_ = api.server.Close()
	}
}

// setDown makes the API server refuse and drop connections.
func (f *fakeAPI) setDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
	if down {
		for conn := range f.conns {
			_ = conn.Close()
		}
		clear(f.conns)
	}
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // connection lost
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	if before != nil && before(w, r) {
		return
	}
	f.serve(w, r, body)
}

func (f *fakeAPI) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	name, isSlice := strings.CutPrefix(r.URL.Path, slicesPath)
	name = strings.TrimPrefix(name, "/")
	switch {
	case r.URL.Path == nodesPath+"/node" && r.Method == http.MethodGet:
		f.mu.Lock()
		defer f.mu.Unlock()
		respondJSON(w, object{"metadata": object{"name": "node", "uid": f.nodeUID}})
	case isSlice && r.Method == http.MethodGet && r.URL.Query().Get("watch") != "":
		f.watch(w, r)
	case isSlice && r.Method == http.MethodGet:
		f.list(w, r)
	case isSlice:
		f.write(w, r.Method, name, body)
	default:
		http.NotFound(w, r)
	}
}

func respondJSON(w http.ResponseWriter, o any) { _ = json.NewEncoder(w).Encode(o) }

// failure responds with a Status.
func failure(w http.ResponseWriter, code int, reason string, causes ...object) {
	w.WriteHeader(code)
	respondJSON(w, object{"kind": "Status", "message": reason, "reason": reason, "code": code, "details": object{"causes": causes}})
}

func spec(slice object) object { return slice["spec"].(object) }
func meta(slice object) object { return slice["metadata"].(object) }

func text(o object, key string) string { s, _ := o[key].(string); return s }

// clone returns a deep copy, with numbers as in a response.
func clone(o object) (c object) {
	data, _ := json.Marshal(o)
	c, _ = decodeObject(data)
	return c
}

func decodeObject(data []byte) (o object, err error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	err = decoder.Decode(&o)
	return o, err
}

// number returns a decoded number.
func number(n any) int64 {
	i, _ := n.(json.Number).Int64()
	return i
}

func selected(fieldSelector string, s object) bool {
	for term := range strings.SplitSeq(fieldSelector, ",") {
		field, value, _ := strings.Cut(term, "=")
		if text(spec(s), strings.TrimPrefix(field, "spec.")) != value {
			return false
		}
	}
	return true
}

func (f *fakeAPI) list(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	items := []object{}
	for _, name := range slices.Sorted(maps.Keys(f.slices)) {
		if selected(r.URL.Query().Get("fieldSelector"), f.slices[name]) {
			items = append(items, f.slices[name])
		}
	}
	respondJSON(w, object{"metadata": object{"resourceVersion": strconv.Itoa(f.version)}, "items": items})
}

func (f *fakeAPI) watch(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	wt := &watcher{events: make(chan string, 1000)}
	for term := range strings.SplitSeq(query.Get("fieldSelector"), ",") {
		field, value, _ := strings.Cut(term, "=")
		switch field {
		case "spec.driver":
			wt.driver = value
		case "spec.nodeName":
			wt.node = value
		}
	}
	f.mu.Lock()
	since, err := strconv.Atoi(query.Get("resourceVersion"))
	if err != nil {
		f.t.Errorf("watch since %q", query.Get("resourceVersion"))
	}
	for _, past := range f.history {
		if past.version > since && wt.selects(past.slice) {
			wt.events <- past.line
		}
	}
	f.watchers[wt] = true
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.watchers, wt)
		f.mu.Unlock()
	}()
	seconds, _ := strconv.Atoi(query.Get("timeoutSeconds"))
	timeout := time.NewTimer(time.Duration(seconds) * time.Second)
	defer timeout.Stop()
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	for {
		select {
		case event := <-wt.events:
			_, _ = io.WriteString(w, event)
			_ = http.NewResponseController(w).Flush()
		case <-timeout.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// send sends an event to the watchers of a slice.
func (f *fakeAPI) send(event string, s object) {
	if f.muted {
		return
	}
	data, _ := json.Marshal(object{"type": event, "object": s})
	past := pastEvent{f.version, clone(s), string(data) + "\n"}
	f.history = append(f.history, past)
	for wt := range f.watchers {
		if wt.selects(s) {
			wt.events <- past.line
		}
	}
}

func (f *fakeAPI) write(w http.ResponseWriter, method, name string, body []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sent, err := decodeObject(body)
	if err != nil {
		failure(w, http.StatusBadRequest, "BadRequest")
		return
	}
	if method == http.MethodPost {
		name = text(meta(sent), "name")
	}
	current, exists := f.slices[name]
	switch {
	case method == http.MethodPost && exists:
		failure(w, http.StatusConflict, "AlreadyExists")
		return
	case method != http.MethodPost && !exists:
		failure(w, http.StatusNotFound, "NotFound")
		return
	}
	if method == http.MethodDelete {
		f.delete(w, name, sent)
		return
	}
	if causes := f.validate(sent, current); len(causes) > 0 {
		failure(w, http.StatusUnprocessableEntity, "Invalid", causes...)
		return
	}
	if method == http.MethodPut && text(meta(sent), "resourceVersion") != text(meta(current), "resourceVersion") {
		failure(w, http.StatusConflict, "Conflict")
		return
	}
	f.writes = append(f.writes, method+" "+name)
	respondJSON(w, f.store(name, sent))
}

func (f *fakeAPI) delete(w http.ResponseWriter, name string, options object) {
	m := meta(f.slices[name])
	p, _ := options["preconditions"].(object)
	if text(p, "uid") != text(m, "uid") || text(p, "resourceVersion") != text(m, "resourceVersion") {
		failure(w, http.StatusConflict, "Conflict")
		return
	}
	f.writes = append(f.writes, "DELETE "+name)
	f.remove(name)
	respondJSON(w, object{"kind": "Status", "status": "Success"})
}

// remove deletes a slice.
func (f *fakeAPI) remove(name string) {
	f.version++
	s := f.slices[name]
	delete(f.slices, name)
	meta(s)["resourceVersion"] = strconv.Itoa(f.version)
	f.send("DELETED", s)
}

var deviceName = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)

// validate returns the causes of an invalid slice, as the API server does.
func (f *fakeAPI) validate(s, old object) (causes []object) {
	add := func(field, message string) { causes = append(causes, object{"field": field, "message": message}) }
	devices, _ := spec(s)["devices"].([]any)
	limit, seen := 128, map[string]bool{}
	for i, d := range devices {
		device := d.(object)
		field := fmt.Sprintf("spec.devices[%d]", i)
		if device["taints"] != nil {
			limit = 64
		}
		if !deviceName.MatchString(text(device, "name")) || seen[text(device, "name")] {
			add(field+".name", "must be a unique DNS label")
		}
		seen[text(device, "name")] = true
		if f.invalid != nil {
			if reason := f.invalid(device); reason != "" {
				add(field, reason)
			}
		}
	}
	if len(devices) > limit {
		add("spec.devices", "too many")
	}
	if old != nil {
		for _, field := range []string{"driver", "nodeName"} {
			if text(spec(s), field) != text(spec(old), field) {
				add("spec."+field, "field is immutable")
			}
		}
		if text(spec(s)["pool"].(object), "name") != text(spec(old)["pool"].(object), "name") {
			add("spec.pool.name", "field is immutable")
		}
	}
	return causes
}

// store stores a slice as the API server does: it drops fields, formats quantities and adds the times of taints.
func (f *fakeAPI) store(name string, sent object) object {
	s := clone(sent)
	m := meta(s)
	m["name"] = name
	delete(m, "managedFields")
	devices, _ := spec(s)["devices"].([]any)
	for _, d := range devices {
		device := d.(object)
		for field := range f.gate {
			delete(device, field)
		}
		capacities, _ := device["capacity"].(object)
		for _, c := range capacities {
			if c.(object)["value"] == "1024Mi" {
				c.(object)["value"] = "1Gi"
			}
		}
		for taint := range objects(device["taints"]) {
			if taint["timeAdded"] == nil {
				taint["timeAdded"] = time.Now().UTC().Format(time.RFC3339)
			}
		}
	}
	current, exists := f.slices[name]
	event := "ADDED"
	if exists {
		event = "MODIFIED"
		m["uid"] = meta(current)["uid"]
		m["managedFields"] = meta(current)["managedFields"]
		m["resourceVersion"] = meta(current)["resourceVersion"]
		a, _ := json.Marshal(s)
		if b, _ := json.Marshal(current); bytes.Equal(a, b) {
			return s // an update without a change
		}
	} else {
		m["uid"] = fmt.Sprint("uid-", f.version)
		m["managedFields"] = []any{object{"manager": "someone"}}
	}
	f.version++
	m["resourceVersion"] = strconv.Itoa(f.version)
	f.slices[name] = s
	f.send(event, s)
	return s
}

// edit changes a slice as another client.
func (f *fakeAPI) edit(name string, change func(s object)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.slices[name]
	if !ok {
		f.t.Fatalf("no slice %s", name)
	}
	s = clone(s)
	change(s)
	f.store(name, s)
}

// create creates a slice as another client.
func (f *fakeAPI) create(name, driver, node string, generation int64, devices ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []any{}
	for _, d := range devices {
		all = append(all, object{"name": d})
	}
	f.store(name, object{"metadata": object{}, "spec": object{
		"driver": driver, "nodeName": node, "devices": all,
		"pool": object{"name": node, "generation": generation, "resourceSliceCount": 1},
	}})
}

// deleteAll deletes all slices, as a starting kubelet does.
func (f *fakeAPI) deleteAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(f.slices)) {
		f.remove(name)
	}
}

// written returns the writes since the last call.
func (f *fakeAPI) written() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	writes := f.writes
	f.writes = nil
	return writes
}

// published returns the names of the testDriver's devices that a scheduler uses, in order: the devices of the latest
// generation, if all its slices exist. ok is false if there is no complete pool.
func (f *fakeAPI) published() (devices []string, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var generation, count, found int64
	for _, name := range slices.Sorted(maps.Keys(f.slices)) {
		s := clone(f.slices[name])
		pool := spec(s)["pool"].(object)
		if text(spec(s), "driver") != testDriver || text(pool, "name") != "node" {
			continue
		}
		switch g := number(pool["generation"]); {
		case g < generation:
			continue
		case g > generation:
			generation, found, devices = g, 0, nil
		}
		found++
		count = number(pool["resourceSliceCount"])
		for device := range objects(spec(s)["devices"]) {
			devices = append(devices, text(device, "name"))
		}
	}
	return devices, found > 0 && found == count
}

// device returns a stored device.
func (f *fakeAPI) device(name string) (found object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.slices {
		for device := range objects(spec(clone(s))["devices"]) {
			if text(device, "name") == name {
				found = device
			}
		}
	}
	return found
}

// statusRecorder records the status code of a response that no client receives.
type statusRecorder struct {
	header http.Header
	code   int
}

func newStatusRecorder() *statusRecorder { return &statusRecorder{http.Header{}, http.StatusOK} }

func (r *statusRecorder) Header() http.Header         { return r.header }
func (r *statusRecorder) Write(b []byte) (int, error) { return len(b), nil }
func (r *statusRecorder) WriteHeader(code int)        { r.code = code }

func readAll(t *testing.T, r *http.Request) []byte {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	return body
}

// snapshot returns all slices as text.
func (f *fakeAPI) snapshot() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	data, _ := json.Marshal(f.slices)
	return string(data)
}
