package cluster

import (
	"errors"
	"net/http"
	"strings"
	"testing"
)

// A missing API means that the cluster is too old. A missing object does not.
func TestRemedy(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"missing API":    {newResponseError(http.StatusNotFound, []byte("404 page not found\n")), "DRA requires Kubernetes 1.34"},
		"missing object": {newResponseError(http.StatusNotFound, []byte(`{"reason":"NotFound","message":"resourceslices \"a\" not found"}`)), ""},
		"forbidden":      {newResponseError(http.StatusForbidden, []byte(`{"reason":"Forbidden"}`)), "allow the service account"},
		"no response":    {errors.New("connection refused"), ""},
	} {
		if got := remedy(tc.err); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: remedy %q, want %q", name, got, tc.want)
		}
	}
}
