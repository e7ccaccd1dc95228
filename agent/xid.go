package agent

import (
	"log/slog"
	"time"

	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/gpu/health"
)

// receiveXID records an XID, and returns whether it made the fault of a device worse, which requires a reconcile: the
// fault has to be saved. Other XIDs require none, because a program can raise thousands per second; the next probe
// detects any other change of a fault.
func (l *loop) receiveXID(x driver.XID, at time.Time) (changed bool) {
	x.Times = max(1, x.Times)
	devices := x.MIG
	if len(devices) == 0 {
		devices = []string{x.GPU}
	}
	for _, uuid := range devices {
		class, worse := l.health.Event(uuid, x.Code, at)
		changed = changed || worse
		l.xids.record(x, uuid, class, at)
	}
	return changed
}

const (
	// xidLogInterval is the minimum time between two log lines for one XID of one device.
	xidLogInterval = time.Minute
	// xidLogKeys bounds memory: codes come from the hardware.
	xidLogKeys = 1024
)

// xidLog logs XIDs, rate-limited per device and code. The metric gpucdi_xids_total counts all of them.
type xidLog struct {
	log    *slog.Logger
	recent map[xidKey]*xidLine
}

type xidKey struct {
	device string
	code   int
}

// xidLine is the latest log line for a key.
type xidLine struct {
	at         time.Time
	suppressed int // XIDs since at
}

func newXIDLog(log *slog.Logger) xidLog { return xidLog{log: log, recent: map[xidKey]*xidLine{}} }

func (l *xidLog) record(x driver.XID, device string, class health.Class, at time.Time) {
	key := xidKey{device, x.Code}
	latest, known := l.recent[key]
	if known && at.Sub(latest.at) < xidLogInterval {
		latest.suppressed += x.Times
		return
	}
	suppressed := 0
	if known {
		suppressed = latest.suppressed
	} else if len(l.recent) >= xidLogKeys {
		clear(l.recent)
	}
	l.recent[key] = &xidLine{at: at}
	l.log.Warn("XID reported", "gpu", x.GPU, "device", device, "xid", x.Code, "class", class, "suppressed", suppressed+x.Times-1)
}
