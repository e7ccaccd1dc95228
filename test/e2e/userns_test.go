package e2e

import (
	"strings"
	"testing"
)

// mountWhole mounts a complete proc and sysfs, which the box lacks: without them, the kernel does not allow a user
// namespace to mount proc and sysfs.
const mountWhole = `set -e
for fs in proc sysfs; do mkdir -p /run/whole/$fs; mount -t $fs $fs /run/whole/$fs; done
`

const unmountWhole = `umount /run/whole/proc /run/whole/sysfs`

// copyDriver copies the driver to the root of NVIDIA's driver container, which the agent searches first. That root is
// on a file system that supports idmapped mounts, unlike the overlay of the box.
const copyDriver = mountWhole + `root=/run/nvidia/driver
mkdir -p $root && mount -t tmpfs tmpfs $root
mkdir -p $root/usr/lib/x86_64-linux-gnu $root/usr/bin $root/etc/OpenCL/vendors
cp -a /usr/lib/x86_64-linux-gnu/libnvidia* /usr/lib/x86_64-linux-gnu/libcuda* $root/usr/lib/x86_64-linux-gnu/
cp -a /usr/bin/nvidia* $root/usr/bin/
cp -a /etc/OpenCL/vendors/* $root/etc/OpenCL/vendors/`

const removeDriverCopy = unmountWhole + ` && umount --lazy /run/nvidia/driver`

// coverDriver covers the driver files that containers get with copies on a tmpfs, which supports idmapped mounts.
// MPS does not support the driver root of copyDriver.
const coverDriver = mountWhole + `mkdir -p /run/cover
for file in $(grep -o '"hostPath": *"/[^"]*"' ` + cdiDir + `/gpucdi.dev-gpu.json | cut -d '"' -f 4 | sort -u); do
  file=$(readlink -f $file)
  if [ -f $file ] && ! [ -e /run/cover/$(basename $file) ]; then
    cp -p $file /run/cover/
    mount --bind /run/cover/$(basename $file) $file
  fi
done`

const uncoverDriver = unmountWhole + `
awk '$4 ~ "^/cover/" {print $5}' /proc/self/mountinfo | xargs umount --lazy
rm -r /run/cover`

const userNamespacePod = `apiVersion: v1
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

// userNamespace starts a pod in a user namespace. With containerd 1, which does not support user namespaces for pods,
// the pod stays pending.
func userNamespace(t *testing.T, c *cluster) {
	if name, version := c.runtime(t); name == "containerd" && strings.HasPrefix(version, "1.") {
		c.staysPending(t, "userns", userNamespacePod, troubleshooting, "runtime does not support user namespaces")
		return
	}
	c.runOnNode(t, copyDriver)
	defer func() {
		c.runOnNode(t, removeDriverCopy)
		c.reloadDriver(t, false)
	}()
	c.reloadDriver(t, true)
	if err := c.Apply(t.Context(), []byte(userNamespacePod)); err != nil {
		t.Fatal(err)
	}
	defer c.remove(t, "userns")
	c.awaitPhase(t, "userns", "Running")
	if mapped := strings.Fields(c.exec(t, "userns", "cat /proc/self/uid_map")); len(mapped) != 3 || mapped[1] == "0" {
		t.Errorf("pod has the UID mapping %v, want a separate user namespace", mapped)
	}
	if uuids := c.gpusOf(t, "userns"); len(uuids) != 1 {
		t.Errorf("nvidia-smi -L lists %v, want one", uuids)
	}
}

// reloadDriver makes the agent search for the driver again, and waits until its spec uses the driver container's root
// if inContainer is set, or no longer uses it.
func (c *cluster) reloadDriver(t *testing.T, inContainer bool) {
	t.Helper()
	c.kubectl(t, "exec", "--namespace", "gpucdi", "daemonset/gpucdi", "--", "sh", "-c", "kill -HUP 1")
	c.awaitSpec(t, "/run/nvidia/driver/", inContainer)
	c.awaitGPUs(t, "8")
}

func (c *cluster) runOnNode(t *testing.T, script string) {
	t.Helper()
	if out, err := c.Box.Command(t.Context(), "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("running a script on the node: %v\n%s", err, out)
	}
}
