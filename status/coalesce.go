package status

import (
	"bytes"
	"maps"
	"net/http"
	"strconv"
	"time"
)

// bodyGrowth is the spare capacity of a response beyond the length of the previous one, in bytes.
const bodyGrowth = 512

// coalescer serializes the calls of a handler. Requests that wait meanwhile share the next response. Equal responses
// share one body, which bounds the memory that slow readers occupy.
type coalescer struct {
	handler http.Handler
	turn    chan struct{} // a mutex that a context can interrupt
	latest  *response     // guarded by turn
}

func newCoalescer(handler http.Handler) *coalescer {
	return &coalescer{handler: handler, turn: make(chan struct{}, 1), latest: &response{}}
}

// ServeHTTP implements http.Handler.
func (c *coalescer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	response, ok := c.respond(r)
	if !ok {
		return
	}
	maps.Copy(w.Header(), response.header)
	w.Header().Set("Content-Length", strconv.Itoa(len(response.body)))
	w.WriteHeader(response.code)
	_, _ = w.Write(response.body) // the client may have disconnected
}

// respond returns a response that was started after the request arrived, or false if the client disconnects while it
// waits.
func (c *coalescer) respond(r *http.Request) (*response, bool) {
	arrived := time.Now()
	select {
	case c.turn <- struct{}{}:
	case <-r.Context().Done():
		return nil, false
	}
	defer func() { <-c.turn }()
	if !c.latest.started.Before(arrived) {
		return c.latest, true
	}
	next := &response{header: http.Header{}, code: http.StatusOK, started: time.Now(), body: make([]byte, 0, len(c.latest.body)+bodyGrowth)}
	c.handler.ServeHTTP(next, r)
	if bytes.Equal(next.body, c.latest.body) {
		next.body = c.latest.body
	}
	c.latest = next
	return next, true
}

// response is a buffered response. It is immutable once the handler has returned.
type response struct {
	header  http.Header
	code    int
	body    []byte
	started time.Time
}

// Header implements http.ResponseWriter.
func (r *response) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter.
func (r *response) WriteHeader(code int) { r.code = code }

// Write implements http.ResponseWriter.
func (r *response) Write(body []byte) (int, error) {
	r.body = append(r.body, body...)
	return len(body), nil
}
