package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Pods that have not ended are listed, then their changes are received.
func TestFollowPods(t *testing.T) {
	const waiting = `{"metadata":{"namespace":"n","name":"a","uid":"1"},"spec":{"resourceClaims":[{"name":"x","resourceClaimTemplateName":"t"},{"name":"y","resourceClaimName":"c"}]}}`
	const created = `{"metadata":{"namespace":"n","name":"a","uid":"1"},"spec":{"resourceClaims":[{"name":"x","resourceClaimTemplateName":"t"}]},"status":{"resourceClaimStatuses":[{"name":"x"}]}}`
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		switch {
		case r.URL.Path != "/api/v1/pods" || q.Get("labelSelector") != "a=b" || q.Get("fieldSelector") != "status.phase!=Succeeded,status.phase!=Failed":
			w.WriteHeader(http.StatusNotFound)
		case q.Get("watch") == "":
			_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"7"},"items":[`+waiting+`]}`)
		case q.Get("resourceVersion") != "7" || q.Has("limit"):
			w.WriteHeader(http.StatusBadRequest)
		default:
			_, _ = io.WriteString(w, `{"type":"MODIFIED","object":`+created+`}{"type":"DELETED","object":`+created+`}`)
		}
	})
	var got []ClaimingPod
	var deletions int
	err := client.FollowPods(t.Context(), "a=b", func(pods []ClaimingPod) { got = append(got, pods...) }, func(p ClaimingPod, deleted bool) {
		got = append(got, p)
		if deleted {
			deletions++
		}
	})
	if err != nil || len(got) != 3 || deletions != 1 {
		t.Fatalf("pods %+v, %d deletions, error %v", got, deletions, err)
	}
	if p := got[0]; !p.Waiting || len(p.Templates) != 1 || p.Templates[0] != "t" || p.Namespace != "n" || p.UID != "1" {
		t.Errorf("listed %+v", p)
	}
	if p := got[1]; p.Waiting {
		t.Errorf("changed %+v", p)
	}
	if err := client.FollowPods(t.Context(), "c=d", nil, nil); err == nil || !strings.Contains(err.Error(), "pods with label c=d") {
		t.Errorf("error %v", err)
	}
}

// The end of the context is no error, even before the API server responds to the watch.
func TestFollowPodsCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "" {
			_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"7"},"items":[]}`)
			return
		}
		cancel()
		<-r.Context().Done()
	})
	if err := client.FollowPods(ctx, "a=b", func([]ClaimingPod) {}, nil); err != nil {
		t.Error(err)
	}
}

// The memory for a pod is limited, whatever the number of its claims.
func TestClaimingPodLimit(t *testing.T) {
	decode := func(claims []string) (p ClaimingPod) {
		t.Helper()
		if err := json.Unmarshal([]byte(`{"spec":{"resourceClaims":[`+strings.Join(claims, ",")+`]}}`), &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	var same, different []string
	for i := range 10000 {
		same = append(same, fmt.Sprintf(`{"name":"claim-%d","resourceClaimTemplateName":"t"}`, i))
		different = append(different, fmt.Sprintf(`{"name":"claim-%d","resourceClaimTemplateName":"t-%d"}`, i, i))
	}
	if p := decode(same); !p.Waiting || len(p.Templates) != 1 {
		t.Errorf("%d templates, waiting %t", len(p.Templates), p.Waiting)
	}
	if p := decode(different); !p.Waiting || len(p.Templates) != maxTemplates {
		t.Errorf("%d templates, waiting %t", len(p.Templates), p.Waiting)
	}
}
