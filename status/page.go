package status

import (
	"bytes"
	"maps"
	"net/http"
	"strconv"
	"time"
)

// bodyGrowth is by how much the next response may be longer without moving.
const bodyGrowth = 512

// page serves a handler's response to any number of requests: one is made at a time, and
// all requests that wait for it share it. Responses that do not differ share one body, so
// that clients that read slowly need memory only for those that do.
type page struct {
	handler http.Handler
	turn    chan struct{} // held by the request whose response is made
	latest  *response     // with turn
}

func newPage(handler http.Handler) *page {
	return &page{handler: handler, turn: make(chan struct{}, 1), latest: &response{}}
}

// ServeHTTP implements http.Handler.
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	response, ok := p.respond(r)
	if !ok {
		return
	}
	maps.Copy(w.Header(), response.header)
	w.Header().Set("Content-Length", strconv.Itoa(len(response.body)))
	w.WriteHeader(response.code)
	_, _ = w.Write(response.body) // the client may have gone
}

// respond returns a response that is as new as the request, unless the client goes while
// others have their turn.
func (p *page) respond(r *http.Request) (*response, bool) {
	arrived := time.Now()
	select {
	case p.turn <- struct{}{}:
	case <-r.Context().Done():
		return nil, false
	}
	defer func() { <-p.turn }()
	if !p.latest.started.Before(arrived) {
		return p.latest, true
	}
	made := &response{header: http.Header{}, code: http.StatusOK, started: time.Now(), body: make([]byte, 0, len(p.latest.body)+bodyGrowth)}
	p.handler.ServeHTTP(made, r)
	if bytes.Equal(made.body, p.latest.body) {
		made.body = p.latest.body
	}
	p.latest = made
	return made, true
}

// response is that of a handler, in memory. Nobody changes it once it is made.
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
