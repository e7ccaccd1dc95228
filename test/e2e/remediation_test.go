package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// nodeRemediation follows docs/remediation.md with a fault. At the end it uninstalls the chart.
func nodeRemediation(t *testing.T, c *cluster) {
	const set = "helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --set config.remediation."
	c.kubectl(t, "taint", "node", node.Name, "example.com/other=stays:PreferNoSchedule")
	// Earlier cases patched the ConfigMap, so without --force-conflicts Helm would report a conflict.
	c.sh(t, "helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --force-conflicts")
	c.sh(t, blocksOf(t, "docs/remediation.md", "Enable", "sh")[0])
	c.sh(t, set+"after=1h")
	c.syncConfig(t)
	c.awaitMarks(t, "True GPUsHealthy", "")

	faulty := c.driver.State().GPUs[2].UUID
	c.setRecoveryAction(t, faulty, simdriver.RecoveryReset)
	if err := c.driver.RaiseXID(faulty, 48); err != nil {
		t.Fatal(err)
	}
	c.awaitEvent(t, "Warning", "GPUUnhealthy", faulty+") is unhealthy: XID 48")
	c.keepsMarks(t, "True GPUsHealthy", "") // the fault has not lasted long enough
	c.sh(t, set+"after=10s")
	c.syncConfig(t)
	c.awaitMarks(t, "False GPUFault", "xid_48:NoSchedule")
	if message := c.nodeField(t, `{.status.conditions[?(@.type=="NvidiaGPUHealthy")].message}`); !strings.Contains(message, faulty+"): XID 48") {
		t.Errorf("message of the condition: %q", message)
	}

	c.killAgent(t) // condition and taint stay while the agent restarts
	c.keepsMarks(t, "False GPUFault", "xid_48:NoSchedule")
	c.kubectl(t, "taint", "node", node.Name, "gpucdi.dev/gpu-fault-") // the next agent restores the taint
	c.killAgent(t)
	c.awaitMarks(t, "False GPUFault", "xid_48:NoSchedule")

	c.sh(t, set+"taint=none")
	c.syncConfig(t)
	c.awaitMarks(t, "False GPUFault", "")
	c.sh(t, set+"taint=NoSchedule")
	c.syncConfig(t)
	c.awaitMarks(t, "False GPUFault", "xid_48:NoSchedule")
	c.setRecoveryAction(t, faulty, simdriver.RecoveryNone)
	c.awaitMarks(t, "True GPUsHealthy", "")

	c.setRecoveryAction(t, faulty, simdriver.RecoveryReset)
	c.awaitMarks(t, "False GPUFault", "recovery_needed:NoSchedule")
	c.helm(t, "Uninstall", 0)
	c.awaitMarks(t, "", "")
	if taints := c.nodeField(t, `{.spec.taints[*].key}`); !strings.Contains(taints, "example.com/other") {
		t.Errorf("the foreign taint is lost: %q", taints)
	}
	c.setRecoveryAction(t, faulty, simdriver.RecoveryNone)
	c.kubectl(t, "taint", "node", node.Name, "example.com/other-")
}

// JSONPaths of the agent's condition and taint.
const (
	conditionPath = `{range .status.conditions[?(@.type=="NvidiaGPUHealthy")]}{.status} {.reason}{end}`
	taintPath     = `{range .spec.taints[?(@.key=="gpucdi.dev/gpu-fault")]}{.value}:{.effect}{end}`
)

// nodeField returns the part of the Node at a JSONPath.
func (c *cluster) nodeField(t *testing.T, path string) string {
	t.Helper()
	return c.kubectl(t, "get", "node", node.Name, "-o", "jsonpath="+path)
}

// awaitMarks waits until the Node has the agent's condition, as status and reason, and its taint, as value and effect;
// empty for none.
func (c *cluster) awaitMarks(t *testing.T, condition, taint string) {
	t.Helper()
	await(t, "condition "+condition+" and taint "+taint, func() (string, bool) {
		nowCondition, nowTaint := c.marks(t)
		return nowCondition + " " + nowTaint, nowCondition == condition && nowTaint == taint
	})
}

// keepsMarks checks for 10 s that the Node has the agent's condition and taint.
func (c *cluster) keepsMarks(t *testing.T, condition, taint string) {
	t.Helper()
	for range 20 {
		if nowCondition, nowTaint := c.marks(t); nowCondition != condition || nowTaint != taint {
			t.Fatalf("got condition %q and taint %q, want %q and %q", nowCondition, nowTaint, condition, taint)
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func (c *cluster) marks(t *testing.T) (condition, taint string) {
	t.Helper()
	return c.nodeField(t, conditionPath), c.nodeField(t, taintPath)
}
