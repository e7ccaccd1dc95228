package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// told lets a GPU fail and recover, and looks for it in the node's Events, in
// the metrics and in gpucdi status.
func told(t *testing.T, c *cluster) {
	c.run(t, "holder", 1)
	c.awaitPhase(t, "holder", "Running")
	held := c.gpusOf(t, "holder")[0]
	sick := c.driver.State().GPUs[5].UUID
	if sick == held {
		sick = c.driver.State().GPUs[6].UUID
	}
	recovery := func(action int) {
		t.Helper()
		if err := c.driver.Update(func(s *simdriver.State) error { s.GPU(sick).RecoveryAction = action; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	const reset, none = 1, 0

	recovery(reset)
	if err := c.driver.RaiseXID(sick, 48); err != nil {
		t.Fatal(err)
	}
	c.awaitGPUs(t, "7")
	c.awaitEvent(t, "Warning", "GPUUnhealthy", sick+") is unhealthy: XID 48")
	if described := c.kubectl(t, "describe", "node", node.Name); !strings.Contains(described, "GPUUnhealthy") {
		t.Errorf("kubectl describe node does not show the event:\n%s", described)
	}
	c.awaitOutput(t, `gpucdi_devices{health="unhealthy",reason="xid_48",resource="nvidia.com/gpu"} 1`, c.metrics)
	c.awaitOutput(t, fmt.Sprintf(`gpucdi_device_allocated{container="main",device=%q,gpu=%q,namespace="default",pod="holder",resource="nvidia.com/gpu"} 1`, held, held), c.metrics)
	status := c.kubectl(t, "exec", "--namespace", "gpucdi", "daemonset/gpucdi", "--", "gpucdi", "status", "-o", "wide")
	for line := range strings.Lines(status) {
		for uuid, want := range map[string]string{sick: "unhealthy", held: "default/holder/main"} {
			if strings.Contains(line, uuid) && !strings.Contains(line, want) {
				t.Errorf("gpucdi status lacks %s in %s", want, line)
			}
		}
	}
	for _, link := range []string{"driver", "spec", "runtime", "kubelet"} {
		if !strings.Contains(c.metrics(t), fmt.Sprintf("gpucdi_link_healthy{link=%q} 1", link)) {
			t.Errorf("the link %s is not healthy:\n%s", link, status)
		}
	}

	time.Sleep(6 * time.Second) // for a probe to see the driver ask for the reset; else it takes the quiet period
	recovery(none)
	c.awaitGPUs(t, "8")
	c.awaitEvent(t, "Normal", "GPUHealthy", sick+") is healthy again")
	c.awaitOutput(t, `gpucdi_devices{health="healthy",reason="",resource="nvidia.com/gpu"} 8`, c.metrics)
	if log := c.kubectl(t, "logs", "--namespace", "gpucdi", "daemonset/gpucdi"); strings.Contains(log, "Event is dropped") {
		t.Errorf("the log says\n%s", log)
	}
}

// leastRights asks the API server what the agent's service account may do there.
func leastRights(t *testing.T, c *cluster) {
	for _, tc := range []struct {
		may  []string
		want bool
	}{
		{[]string{"create", "events", "--namespace", "default"}, true},
		{[]string{"patch", "events", "--namespace", "default"}, true},
		{[]string{"get", "events", "--namespace", "default"}, false},
		{[]string{"create", "events", "--namespace", "kube-system"}, false},
		{[]string{"get", "pods", "--namespace", "gpucdi"}, false},
		{[]string{"get", "secrets", "--namespace", "gpucdi"}, false},
		{[]string{"patch", "nodes"}, true},
		{[]string{"watch", "nodes"}, true},
		{[]string{"get", "nodes"}, false},
		{[]string{"list", "nodes"}, false},
		{[]string{"update", "nodes"}, false},
		{[]string{"patch", "nodes", "--subresource", "status"}, false},
	} {
		out, _ := c.Kubectl(t.Context(), append([]string{"auth", "can-i", "--as", "system:serviceaccount:gpucdi:gpucdi"}, tc.may...)...)
		if got := strings.TrimSpace(string(out)); got != map[bool]string{true: "yes", false: "no"}[tc.want] {
			t.Errorf("may it %v: %s", tc.may, got)
		}
	}
}

// metrics are the agent's, as Prometheus would get them.
func (c *cluster) metrics(t *testing.T) string {
	t.Helper()
	pod := c.kubectl(t, "get", "pods", "--namespace", "gpucdi", "--field-selector", "status.phase=Running", "-o", "jsonpath={.items[0].metadata.name}")
	return c.kubectl(t, "get", "--raw", "/api/v1/namespaces/gpucdi/pods/"+pod+":9435/proxy/metrics")
}

func (c *cluster) awaitEvent(t *testing.T, kind, reason, message string) {
	t.Helper()
	c.awaitOutput(t, message, func(t *testing.T) string {
		return c.kubectl(t, "get", "events", "--field-selector",
			"involvedObject.kind=Node,involvedObject.name="+node.Name+",type="+kind+",reason="+reason, "-o", "jsonpath={.items[*].message}")
	})
}

// awaitOutput waits until something is in what get returns.
func (c *cluster) awaitOutput(t *testing.T, want string, get func(*testing.T) string) {
	t.Helper()
	await(t, want, func() (string, bool) {
		out := get(t)
		return out, strings.Contains(out, want)
	})
}
