package e2e

import (
	"strings"
	"testing"
)

// moveDriver puts the driver where a driver container has it, on a file system
// whose files' owners can be mapped: the box's own, an overlay, is none. And
// before the kernel lets a user namespace mount /proc and /sys it wants to see
// them whole, which the box's are not.
const moveDriver = `set -e
for fs in proc sysfs; do mkdir -p /run/whole/$fs; mount -t $fs $fs /run/whole/$fs; done
root=/run/nvidia/driver
mkdir -p $root && mount -t tmpfs tmpfs $root
mkdir -p $root/usr/lib/x86_64-linux-gnu $root/usr/bin $root/etc/OpenCL/vendors
cp -a /usr/lib/x86_64-linux-gnu/libnvidia* /usr/lib/x86_64-linux-gnu/libcuda* $root/usr/lib/x86_64-linux-gnu/
cp -a /usr/bin/nvidia* $root/usr/bin/
cp -a /etc/OpenCL/vendors/* $root/etc/OpenCL/vendors/`

const moveDriverBack = `umount /run/whole/proc /run/whole/sysfs && umount --lazy /run/nvidia/driver`

const inUserNamespace = `apiVersion: v1
kind: Pod
metadata: {name: userns}
spec:
  hostUsers: false
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: debian:bookworm-slim
    imagePullPolicy: Never
    command: [sleep, infinity]
    resources: {limits: {nvidia.com/gpu: 1}}
`

// userNamespace starts a pod whose root is nobody on the node. containerd 1 makes
// no user namespaces for pods, and there the kubelet refuses it.
func userNamespace(t *testing.T, c *cluster) {
	if name, version := c.runtime(t); name == "containerd" && strings.HasPrefix(version, "1.") {
		c.waits(t, "userns", inUserNamespace, troubleshooting, "runtime does not support user namespaces")
		return
	}
	c.onNode(t, moveDriver)
	defer func() {
		c.onNode(t, moveDriverBack)
		c.rereadDriver(t, false)
	}()
	c.rereadDriver(t, true)
	if err := c.Apply(t.Context(), []byte(inUserNamespace)); err != nil {
		t.Fatal(err)
	}
	defer c.remove(t, "userns")
	c.awaitPhase(t, "userns", "Running")
	if mapped := strings.Fields(c.in(t, "userns", "cat /proc/self/uid_map")); len(mapped) != 3 || mapped[1] == "0" {
		t.Errorf("the pod has the user namespace %v, want one of its own", mapped)
	}
	if uuids := c.gpusOf(t, "userns"); len(uuids) != 1 {
		t.Errorf("nvidia-smi -L lists %v, want one", uuids)
	}
}

// rereadDriver lets the agent look anew for the driver, and waits until its spec
// is, or is no longer, of the driver container's.
func (c *cluster) rereadDriver(t *testing.T, moved bool) {
	t.Helper()
	c.kubectl(t, "exec", "--namespace", "gpucdi", "daemonset/gpucdi", "--", "sh", "-c", "kill -HUP 1")
	c.awaitSpec(t, "/run/nvidia/driver/", moved)
	c.awaitGPUs(t, "8")
}

func (c *cluster) onNode(t *testing.T, script string) {
	t.Helper()
	if out, err := c.Box.Command(t.Context(), "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
