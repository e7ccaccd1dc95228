package cluster

import "time"

// stableAfter is the minimum duration of a watch that resets the backoff.
const stableAfter = 10 * time.Second

// poolBackoff computes the pauses between attempts to publish a pool. They double from 100 ms up to a limit that
// depends on the kind of error, and start again if the kind changes.
type poolBackoff struct {
	limit    time.Duration
	attempts int
}

// next returns the pause after an error.
func (b *poolBackoff) next(err error) time.Duration {
	if limit := backoffLimit(err); limit != b.limit {
		*b = poolBackoff{limit: limit}
	}
	pause := min(100*time.Millisecond<<min(b.attempts, 10), b.limit)
	b.attempts++
	return Jittered(pause)
}

// backoffLimit returns the maximum pause after an error.
func backoffLimit(err error) time.Duration {
	switch {
	case statusCode(err) == 0:
		return time.Second // no response: devices should be published within a second of the API server's return
	case Refused(err):
		return time.Minute // requires an administrator, or time: a starting API server refuses all requests
	default:
		return 5 * time.Second // overloaded
	}
}
