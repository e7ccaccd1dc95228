package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/node/images"
)

// whyPrivileged shows what docs/security.md says: nothing less than privileged
// opens the node's device nodes, which NVML does.
func whyPrivileged(t *testing.T, c *cluster) {
	for name, tc := range map[string]struct{ context, says string }{
		// No kernel driver stands behind the simulated nodes, so one that may be
		// opened says that there is no such device.
		"privileged":   {"{privileged: true}", "No such device or address"},
		"capabilities": {"{capabilities: {add: [ALL]}}", "Operation not permitted"},
		"unconfined": {"{capabilities: {add: [ALL]}, seccompProfile: {type: Unconfined}, appArmorProfile: {type: Unconfined}}",
			"Operation not permitted"},
	} {
		manifest := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: %s
    imagePullPolicy: Never
    command: [sleep, infinity]
    securityContext: %s
    terminationMessagePath: /run/termination-log
    volumeMounts: [{name: dev, mountPath: /dev}]
  volumes: [{name: dev, hostPath: {path: /dev}}]
`, name, images.DebianName, tc.context)
		if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.remove(t, name) })
		c.awaitPhase(t, name, "Running")
		for _, device := range []string{"/dev/nvidiactl", "/dev/nvidia0"} {
			if out := c.in(t, name, "dd if="+device+" count=1 || true"); !strings.Contains(out, tc.says) {
				t.Errorf("%s: opening %s: %s, want %s", name, device, out, tc.says)
			}
		}
	}
}

// fewRights looks at all threads of the agent, and of the process that holds the
// driver for it, once they are at work: a container that is privileged starts
// with all capabilities.
func fewRights(t *testing.T, c *cluster) {
	const (
		none     = "0000000000000000"
		sysAdmin = "0000000000200000"
	)
	out := c.kubectl(t, "exec", "--namespace", "gpucdi", "daemonset/gpucdi", "--",
		"sh", "-c", "grep -h . $(grep -l '^Name:[[:space:]]gpucdi' /proc/[0-9]*/task/*/status)")
	threads := map[string]int{}
	process, zombie := "", false
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		if name == "Name" {
			process = value
			threads[process]++
		}
		if name == "State" { // what the doctor leaves when its end is sudden can use nothing
			zombie = strings.HasPrefix(value, "Z")
		}
		inEffect := none
		if process == "gpucdi-nvml" {
			inEffect = sysAdmin
		}
		want, known := map[string]string{"CapInh": none, "CapAmb": none, "CapPrm": sysAdmin, "CapEff": inEffect,
			"NoNewPrivs": "1"}[name]
		if known && value != want && !zombie {
			t.Errorf("%s of %s is %s, want %s, in\n%s", name, process, value, want, out)
		}
	}
	for _, process := range []string{"gpucdi", "gpucdi-nvml"} {
		if threads[process] < 2 {
			t.Errorf("%s has %d threads: are there no processes to look at?\n%s", process, threads[process], out)
		}
	}
	status := c.kubectl(t, "exec", "--namespace", "gpucdi", "daemonset/gpucdi", "--", "sh", "-c", "grep CapEff /proc/self/status")
	if strings.Contains(status, sysAdmin) {
		t.Errorf("the container has no other rights itself: %s", status)
	}
}
