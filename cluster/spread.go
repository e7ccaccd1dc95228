package cluster

import (
	"math/rand/v2"
	"time"
)

// DefaultSpread is the default of Client.Spread. With it, about 17 of 5,000 agents send requests in each second.
const DefaultSpread = 5 * time.Minute

// minSpread is the minimum of Client.Spread. It bounds the rate of requests that are not urgent.
const minSpread = time.Second

// untilSlot returns the time until the agent's first slot that is at least atLeast away. An agent has one slot in each
// interval of Spread, at a random offset. It sends requests that are not urgent in its slot, so the agents of a cluster
// together send them at a constant rate, even after an event that affects all agents at the same time.
func (c *Client) untilSlot(atLeast time.Duration) time.Duration {
	c.slots.once.Do(func() {
		c.slots.interval = max(c.Spread, minSpread)
		if c.Spread == 0 {
			c.slots.interval = DefaultSpread
		}
		// In whole seconds, like the timeout of a watch.
		c.slots.first = time.Now().Add(rand.N(c.slots.interval).Truncate(time.Second))
	})
	interval := c.slots.interval
	wait := time.Until(c.slots.first)
	if wait <= 0 {
		wait = interval - (-wait)%interval
	}
	for wait < atLeast {
		wait += interval
	}
	return wait
}

// Jittered returns a random pause from half of d up to d. It keeps agents that fail at the same time from retrying at
// the same time. d must be positive.
func Jittered(d time.Duration) time.Duration { return d - rand.N(d/2+1) }
