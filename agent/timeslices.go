package agent

import (
	"context"
	"time"

	"github.com/gpucdi/gpucdi/dra"
)

// timeSliceRetry is the time before a time slice that was not restored is set again. Each attempt starts a process.
const timeSliceRetry = time.Minute

// restoreTimeSlices sets the time slices of prepared claims each time the driver was read, until ctx ends: a driver loses
// them when it is reloaded.
func (c *claims) restoreTimeSlices(ctx context.Context) {
	var due []dra.Record
	var retry <-chan time.Time // nil if none is due
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.driverRead:
			due = c.driver.Records()
		case <-retry:
		}
		retry = nil
		if due = c.driver.RestoreTimeSlices(ctx, due); len(due) > 0 {
			retry = time.After(timeSliceRetry)
		}
	}
}
