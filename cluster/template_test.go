package cluster

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestClaimTemplates(t *testing.T) {
	reply := http.StatusOK
	var path, selector, body string
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		path, selector, body = r.Method+" "+r.URL.Path, r.URL.Query().Get("labelSelector"), string(data)
		w.WriteHeader(reply)
		reason := map[int]string{http.StatusConflict: "AlreadyExists", http.StatusNotFound: "NotFound"}[reply]
		_, _ = io.WriteString(w, `{"reason":"`+reason+`","items":[{"metadata":{"namespace":"n","name":"t","uid":"u"}}]}`)
	})
	all, err := client.ClaimTemplates(t.Context(), "a=b")
	if err != nil || len(all) != 1 || all[0].Metadata.Name != "t" || path != "GET /apis/resource.k8s.io/v1/resourceclaimtemplates" || selector != "a=b" {
		t.Errorf("templates %+v, error %v, %s with label %s", all, err, path, selector)
	}
	if err := client.CreateClaimTemplate(t.Context(), "n", map[string]string{"kind": "x"}); err != nil ||
		path != "POST /apis/resource.k8s.io/v1/namespaces/n/resourceclaimtemplates" || body != `{"kind":"x"}` {
		t.Errorf("error %v, %s %s", err, path, body)
	}
	if err := client.DeleteClaimTemplate(t.Context(), all[0]); err != nil ||
		path != "DELETE /apis/resource.k8s.io/v1/namespaces/n/resourceclaimtemplates/t" || !strings.Contains(body, `"uid":"u"`) {
		t.Errorf("error %v, %s %s", err, path, body)
	}
	reply = http.StatusConflict
	if err := client.CreateClaimTemplate(t.Context(), "n", nil); !errors.Is(err, ErrAlreadyExists) {
		t.Errorf("error %v", err)
	}
	reply = http.StatusNotFound
	if err := client.DeleteClaimTemplate(t.Context(), all[0]); err != nil {
		t.Errorf("error %v", err)
	}
	reply = http.StatusForbidden
	if err := client.DeleteClaimTemplate(t.Context(), all[0]); err == nil || !Refused(err) {
		t.Errorf("error %v", err)
	}
}
