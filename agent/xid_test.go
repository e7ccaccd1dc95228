package agent

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/gpu/health"
)

func TestXIDLogRateLimit(t *testing.T) {
	var out bytes.Buffer
	log := newXIDLog(slog.New(slog.NewTextHandler(&out, nil)))
	start := time.Now()
	record := func(code int, after time.Duration) {
		log.record(driver.XID{GPU: "GPU-a", Code: code, Times: 1}, "GPU-a", health.Application, start.Add(after))
	}
	for i := range 1000 {
		record(13, time.Duration(i)*time.Millisecond)
	}
	record(31, time.Second)
	record(13, 2*xidLogInterval)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[1], "xid=31") || !strings.Contains(lines[2], "suppressed=999") {
		t.Errorf("want one line each for 1000 times XID 13, for XID 31 and for a later XID 13, got\n%s", out.String())
	}
	for code := range 10 * xidLogKeys {
		record(code, 0)
	}
	if len(log.recent) > xidLogKeys {
		t.Errorf("%d keys tracked, want at most %d", len(log.recent), xidLogKeys)
	}
}
