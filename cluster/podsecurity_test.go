package cluster

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestPodSecurity(t *testing.T) {
	const noEscalation = `"allowPrivilegeEscalation":false`
	for spec, want := range map[string]struct {
		containers []string // RootContainers
		root       bool
	}{
		`{"containers":[{"name":"a"}]}`:                                                                                     {[]string{"a"}, true},
		`{"hostUsers":true,"containers":[{"name":"a"}]}`:                                                                    {[]string{"a"}, true},
		`{"hostUsers":false,"containers":[{"name":"a"}]}`:                                                                   {[]string{"a"}, false},
		`{"securityContext":{"runAsNonRoot":true},"containers":[{"name":"a"}]}`:                                             {nil, false},
		`{"securityContext":{"runAsUser":1000},"initContainers":[{"name":"i"}],"containers":[{"name":"a"}]}`:                {nil, false},
		`{"securityContext":{"runAsUser":1000},"containers":[{"name":"a","securityContext":{"runAsUser":0}}]}`:              {[]string{"a"}, true},
		`{"securityContext":{"runAsNonRoot":true},"containers":[{"name":"a","securityContext":{"runAsNonRoot":false}}]}`:    {[]string{"a"}, true},
		`{"containers":[{"name":"a","securityContext":{"runAsUser":7}}],"initContainers":[{"name":"i"}]}`:                   {[]string{"i"}, true},
		`{"containers":[{"name":"a","securityContext":{"runAsNonRoot":true}}],"ephemeralContainers":[{"name":"debug"}]}`:    {[]string{"debug"}, true},
		`{"containers":[{"name":"a","securityContext":{"runAsNonRoot":true,"runAsUser":0}}]}`:                               {nil, false}, // the kubelet does not start it
		`{"securityContext":{"runAsUser":0},"containers":[{"name":"a"},{"name":"b","securityContext":{"runAsUser":1000}}]}`: {[]string{"a"}, true},
		`{"securityContext":{"runAsNonRoot":false,"runAsUser":5},"containers":[{"name":"a"}]}`:                              {nil, false},

		`{"securityContext":{"runAsNonRoot":true},"containers":[{"name":"setuid"}]}`:                                                                {[]string{"setuid"}, true},
		`{"securityContext":{"runAsUser":1000},"containers":[{"name":"setuid","securityContext":{"allowPrivilegeEscalation":true,"runAsUser":5}}]}`: {[]string{"setuid"}, true},
	} {
		// Forbid privilege escalation, except in the containers named setuid and debug, so that only the user decides.
		spec = strings.NewReplacer(`"securityContext":{"runAs`, `"securityContext":{`+noEscalation+`,"runAs`, `"name":"a"}`, `"name":"a","securityContext":{`+noEscalation+`}}`,
			`"name":"i"}`, `"name":"i","securityContext":{`+noEscalation+`}}`).Replace(spec)
		client := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/api/v1/namespaces/n/pods/p" {
				t.Errorf("path %s", r.URL.Path)
			}
			_, _ = io.WriteString(w, `{"metadata":{"uid":"u"},"spec":`+spec+`}`)
		})
		p, err := client.PodSecurity(t.Context(), "n", "p")
		if err != nil || p.UID != "u" || !slices.Equal(p.RootContainers, want.containers) || p.Root() != want.root {
			t.Errorf("%s: %+v, root %t, error %v; want %+v", spec, p, p.Root(), err, want)
		}
	}
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	if _, err := client.PodSecurity(t.Context(), "n", "p"); err == nil || !strings.Contains(err.Error(), "reading pod n/p") {
		t.Errorf("error %v", err)
	}
}
