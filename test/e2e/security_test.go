package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/node/images"
)

// privilegedOnly checks that a container without an allocated GPU can open the driver's device nodes, which NVML requires,
// only if it is privileged. See docs/security.md.
func privilegedOnly(t *testing.T, c *cluster) {
	for name, tc := range map[string]struct{ context, want string }{
		// The simulated device nodes have no kernel driver: where opening is permitted, it fails with ENXIO.
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
    terminationMessagePath: /run/termination-log # the default is in /dev
    volumeMounts: [{name: dev, mountPath: /dev}]
  volumes: [{name: dev, hostPath: {path: /dev}}]
`, name, images.DebianName, tc.context)
		if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.remove(t, name) })
		c.awaitPhase(t, name, "Running")
		for _, device := range []string{"/dev/nvidiactl", "/dev/nvidia0"} {
			if out := c.exec(t, name, "dd if="+device+" count=1 || true"); !strings.Contains(out, tc.want) {
				t.Errorf("%s: opening %s: %s, want %s", name, device, out, tc.want)
			}
		}
	}
}

// droppedCapabilities checks that all threads of the running agent and its driver worker have only the privileges in
// docs/security.md. Privileged containers start with all capabilities.
func droppedCapabilities(t *testing.T, c *cluster) {
	const (
		none     = "0000000000000000"
		sysAdmin = "0000000000200000"
	)
	out := c.kubectl(t, "exec", "--namespace", "gpucdi", "daemonset/gpucdi", "--",
		"sh", "-c", "grep -hs . $(grep -l '^Name:[[:space:]]gpucdi' /proc/[0-9]*/task/*/status) || true")
	threads := map[string]int{}
	process, zombie := "", false
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		if name == "Name" {
			process = value
			threads[process]++
		}
		if name == "State" { // a zombie left by a killed doctor cannot use its capabilities
			zombie = strings.HasPrefix(value, "Z")
		}
		effective := none
		if process == "gpucdi-nvml" {
			effective = sysAdmin
		}
		want, known := map[string]string{"CapInh": none, "CapAmb": none, "CapPrm": sysAdmin, "CapEff": effective,
			"NoNewPrivs": "1"}[name]
		if known && value != want && !zombie {
			t.Errorf("%s of %s is %s, want %s:\n%s", name, process, value, want, out)
		}
	}
	for _, process := range []string{"gpucdi", "gpucdi-nvml"} {
		if threads[process] < 2 {
			t.Errorf("found %d threads of %s, want several:\n%s", threads[process], process, out)
		}
	}
	status := c.kubectl(t, "exec", "--namespace", "gpucdi", "daemonset/gpucdi", "--", "sh", "-c", "grep CapEff /proc/self/status")
	if strings.Contains(status, sysAdmin) {
		t.Errorf("a new process in the container does not have more capabilities than the agent, so this check proves nothing: %s", status)
	}
}

// rbac checks the permissions of the agent's service account.
func rbac(t *testing.T, c *cluster) {
	for _, tc := range []struct {
		access []string
		want   bool
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
		// Run kubectl in the box: c.Kubectl would run it in the test's process, which auth can-i exits if the answer is no.
		args := append([]string{"auth", "can-i", "--as", "system:serviceaccount:gpucdi:gpucdi"}, tc.access...)
		out, _ := c.Box.Command(t.Context(), "kubectl", args...).Output()
		if got := strings.TrimSpace(string(out)); got != map[bool]string{true: "yes", false: "no"}[tc.want] {
			t.Errorf("kubectl auth can-i %v: %s", tc.access, got)
		}
	}
}
