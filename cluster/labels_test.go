package cluster

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

func TestApplyLabels(t *testing.T) {
	s := newServer(t)
	done := make(chan error)
	go func() { done <- s.client.ApplyLabels(t.Context(), "node", map[string]string{"a": "b"}) }()
	c := s.next(t, http.StatusOK)
	if c.method != http.MethodPatch || c.path != "/api/v1/nodes/node" || c.contentType != "application/apply-patch+yaml" {
		t.Errorf("request %+v", c)
	}
	want := "map[apiVersion:v1 kind:Node metadata:map[labels:map[a:b] name:node]]"
	if got := fmt.Sprint(c.body); got != want {
		t.Errorf("body %s, want %s", got, want)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}

	go func() { done <- s.client.ApplyLabels(t.Context(), "node", nil) }()
	s.next(t, http.StatusForbidden)
	if err := <-done; !Refused(err) {
		t.Errorf("error %v, want a refusal", err)
	}
}

func TestWatchLabels(t *testing.T) {
	for name, tc := range map[string]struct {
		code      int
		response  string
		want      []string // labels of each event
		wantError string   // empty for none
	}{
		"changes": {200, `{"type":"ADDED","object":{"metadata":{"labels":{"a":"1"}}}}
{"type":"MODIFIED","object":{"metadata":{"labels":{"a":"2"}}}}
{"type":"MODIFIED","object":{"metadata":{}}}
`, []string{"map[a:1]", "map[a:2]", "map[]"}, ""},
		"forbidden":    {403, "nodes is forbidden", nil, "nodes is forbidden"},
		"ERROR event":  {200, `{"type":"ERROR","object":{"message":"too old"}}`, nil, "too old"},
		"invalid JSON": {200, "<html>", nil, "invalid character"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/api/v1/nodes" || r.URL.Query().Get("fieldSelector") != "metadata.name=node" {
					t.Errorf("request for %s", r.URL)
				}
				w.WriteHeader(tc.code)
				fmt.Fprint(w, tc.response)
			}))
			defer api.Close()
			s.client.host = api.URL
			var got []string
			err := s.client.WatchLabels(t.Context(), "node", func(labels map[string]string) {
				got = append(got, fmt.Sprint(maps.Clone(labels)))
			})
			if (err == nil) != (tc.wantError == "") || err != nil && !strings.Contains(err.Error(), tc.wantError) {
				t.Errorf("error %v, want %q", err, tc.wantError)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("labels %v, want %v", got, tc.want)
			}
		})
	}
}

// Labels returns after the first event, and fails if the watch ends without one.
func TestLabels(t *testing.T) {
	for name, tc := range map[string]struct {
		code      int
		response  string
		want      map[string]string
		wantError string
	}{
		"labels":    {200, `{"type":"ADDED","object":{"metadata":{"labels":{"a":"1"}}}}`, map[string]string{"a": "1"}, ""},
		"no labels": {200, `{"type":"ADDED","object":{"metadata":{}}}`, nil, ""},
		"no node":   {200, "", nil, "node not found"},
		"forbidden": {403, "nodes is forbidden", nil, "nodes is forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(tc.code)
				fmt.Fprint(w, tc.response)
				w.(http.Flusher).Flush()
				if tc.want != nil {
					<-r.Context().Done() // the watch stays open
				}
			}))
			defer api.Close()
			s.client.host = api.URL
			labels, err := s.client.Labels(t.Context(), "node")
			if !maps.Equal(labels, tc.want) {
				t.Errorf("labels %v, want %v", labels, tc.want)
			}
			if (err == nil) != (tc.wantError == "") || err != nil && !strings.Contains(err.Error(), tc.wantError) {
				t.Errorf("error %v, want %q", err, tc.wantError)
			}
		})
	}
}

func TestWatchLabelsCanceled(t *testing.T) {
	s := newServer(t)
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, `{"type":"ADDED","object":{}}`)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer api.Close()
	s.client.host = api.URL
	ctx, cancel := context.WithCancel(t.Context())
	if err := s.client.WatchLabels(ctx, "node", func(map[string]string) { cancel() }); err != nil {
		t.Error(err)
	}
}
