package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// faultReporting makes a GPU fail and recover, and checks the node's Events, the metrics and gpucdi status.
func faultReporting(t *testing.T, c *cluster) {
	c.run(t, "holder", 1)
	c.awaitPhase(t, "holder", "Running")
	held := c.gpusOf(t, "holder")[0]
	faulty := c.driver.State().GPUs[5].UUID
	if faulty == held {
		faulty = c.driver.State().GPUs[6].UUID
	}

	c.setRecoveryAction(t, faulty, simdriver.RecoveryReset)
	if err := c.driver.RaiseXID(faulty, 48); err != nil {
		t.Fatal(err)
	}
	c.awaitGPUs(t, "7")
	c.awaitEvent(t, "Warning", "GPUUnhealthy", faulty+") is unhealthy: XID 48")
	if described := c.kubectl(t, "describe", "node", node.Name); !strings.Contains(described, "GPUUnhealthy") {
		t.Errorf("kubectl describe node does not show the event:\n%s", described)
	}
	c.awaitOutput(t, `gpucdi_devices{health="unhealthy",reason="xid_48",resource="nvidia.com/gpu"} 1`, c.metrics)
	c.awaitOutput(t, fmt.Sprintf(`gpucdi_device_allocated{claim="",container="main",device=%q,gpu=%q,namespace="default",pod="holder",resource="nvidia.com/gpu"} 1`, held, held), c.metrics)
	status := c.kubectl(t, "exec", "--namespace", "gpucdi", "daemonset/gpucdi", "--", "gpucdi", "status", "-o", "wide")
	for uuid, want := range map[string]string{faulty: "unhealthy", held: "default/holder/main"} {
		if !regexp.MustCompile("(?m)^.*" + uuid + ".*" + want).MatchString(status) {
			t.Errorf("gpucdi status does not print %s in the row of %s:\n%s", want, uuid, status)
		}
	}
	for _, component := range []string{"driver", "spec", "runtime", "kubelet"} {
		c.awaitOutput(t, fmt.Sprintf("gpucdi_component_healthy{component=%q} 1", component), c.metrics)
	}

	time.Sleep(6 * time.Second) // until a probe has read the recovery action; otherwise recovery takes the quiet period
	c.setRecoveryAction(t, faulty, simdriver.RecoveryNone)
	c.awaitGPUs(t, "8")
	c.awaitEvent(t, "Normal", "GPUHealthy", faulty+") is healthy again")
	c.awaitOutput(t, `gpucdi_devices{health="healthy",reason="",resource="nvidia.com/gpu"} 8`, c.metrics)
	if log := c.kubectl(t, "logs", "--namespace", "gpucdi", "daemonset/gpucdi"); strings.Contains(log, "Event dropped") {
		t.Errorf("agent dropped an Event:\n%s", log)
	}
}

// setRecoveryAction sets the recovery action that the driver reports for a GPU.
func (c *cluster) setRecoveryAction(t *testing.T, uuid string, action int) {
	t.Helper()
	if err := c.driver.Update(func(s *simdriver.State) error { s.GPU(uuid).RecoveryAction = action; return nil }); err != nil {
		t.Fatal(err)
	}
}

// metrics scrapes the agent.
func (c *cluster) metrics(t *testing.T) string {
	t.Helper()
	pod := c.kubectl(t, "get", "pods", "--namespace", "gpucdi", "-l", "app.kubernetes.io/name=gpucdi", "--field-selector", "status.phase=Running", "-o", "jsonpath={.items[0].metadata.name}")
	return c.kubectl(t, "get", "--raw", "/api/v1/namespaces/gpucdi/pods/"+pod+":9435/proxy/metrics")
}

// awaitEvent waits until the node has an Event of a type and reason whose message contains message.
func (c *cluster) awaitEvent(t *testing.T, eventType, reason, message string) {
	t.Helper()
	c.awaitOutput(t, message, func(t *testing.T) string {
		return c.kubectl(t, "get", "events", "--field-selector",
			"involvedObject.kind=Node,involvedObject.name="+node.Name+",type="+eventType+",reason="+reason, "-o", "jsonpath={.items[*].message}")
	})
}

// awaitOutput waits until the output of get contains want.
func (c *cluster) awaitOutput(t *testing.T, want string, get func(*testing.T) string) {
	t.Helper()
	await(t, want, func() (string, bool) {
		out := get(t)
		return out, strings.Contains(out, want)
	})
}
