package agent

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/cluster"
	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/gpu"
)

// The marks are written again after an outage of the API server. A refusal is reported only if there may be marks.
func TestMarker(t *testing.T) {
	code, writes := http.StatusOK, 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if w.WriteHeader(code); code == http.StatusOK && r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"1"},"spec":{"taints":[{"key":"gpucdi.dev/gpu-fault","value":"old","effect":"NoSchedule"}]}}`)
		} else if code == http.StatusOK {
			writes++
		}
	}))
	defer api.Close()
	var log bytes.Buffer
	m := marker{client: cluster.New(api.URL, credentials(t)), node: "node", log: slog.New(slog.NewTextHandler(&log, nil)), retry: marksRetry}
	enabled := faultySnapshot(xidFault(48, time.Now().Add(-time.Hour)), gpu.Fault{}, gpu.Fault{})
	disabled := faultySnapshot(gpu.Fault{}, gpu.Fault{}, gpu.Fault{})
	disabled.config.Remediation = config.Default().Remediation
	for _, tc := range []struct {
		name       string
		snapshot   *snapshot
		again      bool // the marks are due to be compared again
		code       int
		writes     int
		retry      time.Duration // the next backoff after this step; 0: not checked
		logged     bool
		comparison bool // another comparison is scheduled
	}{
		{name: "disabled without permission", snapshot: disabled, code: http.StatusForbidden},
		{name: "enabled during an outage", snapshot: enabled, code: http.StatusServiceUnavailable, retry: 2 * marksRetry, logged: true, comparison: true},
		{name: "a snapshot without a change does not retry", snapshot: enabled, code: http.StatusOK, retry: 2 * marksRetry, comparison: true},
		{name: "after the outage", snapshot: enabled, again: true, code: http.StatusOK, writes: 2, retry: marksRetry, comparison: true},
		{name: "unknown GPUs", snapshot: newSnapshot(), code: http.StatusOK, retry: marksRetry, comparison: true},
		{name: "disabled, but the permission was revoked first", snapshot: disabled, code: http.StatusForbidden, retry: 2 * marksRetry, logged: true, comparison: true},
		{name: "the permission is granted again", snapshot: disabled, again: true, code: http.StatusOK, writes: 1},
	} {
		code, writes = tc.code, 0
		log.Reset()
		if m.latest = tc.snapshot; tc.snapshot.config.Remediation.Faults == nil {
			tc.snapshot.config.Remediation = enabled.config.Remediation // as in an agent that has just started
		}
		m.written = m.written && !tc.again
		m.sync(t.Context())
		if writes != tc.writes || (m.again != nil) != tc.comparison || tc.retry != 0 && m.retry != tc.retry {
			t.Errorf("%s: %d writes, retry %s, scheduled %v", tc.name, writes, m.retry, m.again != nil)
		}
		if logged := strings.Contains(log.String(), "not updated"); logged != tc.logged {
			t.Errorf("%s: log %q", tc.name, log.String())
		}
	}
}
