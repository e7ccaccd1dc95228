package cluster

import (
	"regexp"
	"strings"
	"testing"
	"time"
)

// The name of an Event is a valid DNS subdomain, even for the longest node name.
func TestEventName(t *testing.T) {
	valid := regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	for _, node := range []string{"node-1.example.com", strings.Repeat("a", 199) + "-" + strings.Repeat("b", 53), strings.Repeat("a.", 126) + "a"} {
		if name := eventName(node, time.Now()); len(name) > 253 || !valid.MatchString(name) {
			t.Errorf("node name of %d bytes: invalid name %s of %d bytes", len(node), name, len(name))
		}
	}
}
