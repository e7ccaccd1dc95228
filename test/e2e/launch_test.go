package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node/images"
)

const troubleshooting = "docs/troubleshooting.md"

// doctorLaunch runs the command of docs/troubleshooting.md that starts a container.
func doctorLaunch(t *testing.T, c *cluster) {
	commands, err := docs.Blocks(t.Context(), troubleshooting, "Test a GPU from inside a container", "sh")
	if err != nil {
		t.Fatal(err)
	}
	// The command also works while a pod holds every GPU.
	c.run(t, "holder", 8)
	c.awaitPhase(t, "holder", "Running")
	c.checkLaunch(t, strings.TrimSpace(commands[0]))
}

// doctorLaunchOnNode runs the doctor on the node instead of in the agent's pod, to launch a container of another image.
func doctorLaunchOnNode(t *testing.T, c *cluster) {
	// A process that is listed may have ended.
	c.sh(t, `mkdir -p /opt/doctor
for p in /proc/[0-9]*; do [ "$(cat $p/comm)" != gpucdi ] || cp $p/root/usr/bin/gpucdi* /opt/doctor || true; done
/opt/doctor/gpucdi version && [ -x /opt/doctor/gpucdi-nvml ]`)
	c.checkLaunch(t, "/opt/doctor/gpucdi doctor --launch --image "+images.DebianName+
		` --address "$(kubectl get pods --namespace gpucdi -o 'jsonpath={.items[0].status.podIP}'):9435"`)
}

// checkLaunch checks the output of a doctor command that launches a container. No check fails, so it exits with 0.
func (c *cluster) checkLaunch(t *testing.T, doctor string) {
	t.Helper()
	out := c.sh(t, doctor)
	first := c.driver.State().GPUs[0]
	for _, line := range []string{
		"pass  container      started from image ",
		"pass  libraries      libcuda.so.1 and libnvidia-ml.so.1 can be loaded\n",
		"pass  visible GPUs   NVML lists " + first.UUID + " and no other\n",
		// The simulated device nodes have no kernel driver: opening them is permitted, but fails with ENXIO, both in
		// the container and on the node.
		fmt.Sprintf("warn  device nodes   cannot open /dev/nvidia-uvm, /dev/nvidia-uvm-tools, /dev/nvidia%d, /dev/nvidiactl: "+
			"no such device or address; the same on the node\n", first.Minor),
	} {
		if !strings.Contains(out, line) {
			t.Errorf("gpucdi doctor does not print %q:\n%s", line, out)
		}
	}
	if left := c.launched(t); len(left) > 0 {
		t.Errorf("containers of the doctor are left in the runtime: %v", left)
	}
}

// interruptedLaunch kills the doctor while its container runs. The kubelet ends the container with the agent's pod, not
// before, and removes it.
func interruptedLaunch(t *testing.T, c *cluster) {
	agent := func() string {
		return c.kubectl(t, "get", "pods", "--namespace", "gpucdi", "-o", "jsonpath={.items[*].metadata.uid} {.items[*].status.containerStatuses[*].restartCount}")
	}
	before := agent()
	// The doctor is stopped first, because the runtime may still wait for the start of the container.
	c.sh(t, `/opt/doctor/gpucdi doctor --launch > /dev/null 2>&1 &
until pgrep -f '[p]robe --idle' > /dev/null; do kill -0 $!; sleep 0.01; done
kill -STOP $!
echo $! > /tmp/doctor.pid`)
	await(t, "the container of the doctor to run", func() (string, bool) {
		now := c.launched(t)
		return fmt.Sprint(now), len(now) == 1 && now[0].State == cri.ContainerState_CONTAINER_RUNNING
	})
	c.sh(t, "kill -9 $(cat /tmp/doctor.pid)")
	time.Sleep(5 * time.Second) // the kubelet checks pods every two seconds
	if left := c.launched(t); len(left) != 1 || left[0].State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("containers of the doctor: %v, want a running one", left)
	}
	if after := agent(); after != before {
		t.Errorf("UID and restarts of the agent were %s, and are %s", before, after)
	}
	c.kubectl(t, "delete", "pods", "--namespace", "gpucdi", "--all")
	c.rolloutStatus(t)
	await(t, "the kubelet to remove the container of the doctor", func() (string, bool) {
		left := c.launched(t)
		return fmt.Sprint(left), len(left) == 0
	})
	c.awaitGPUs(t, "8")
}

// launched returns the containers in the runtime that the doctor created.
func (c *cluster) launched(t *testing.T) []*cri.Container {
	t.Helper()
	containers, err := c.runtimeService(t).ListContainers(t.Context(), &cri.ListContainersRequest{
		Filter: &cri.ContainerFilter{LabelSelector: map[string]string{"gpucdi.dev/launched": "true"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return containers.Containers
}

// runtimeService returns a client of the container runtime that serves the kubelet.
func (c *cluster) runtimeService(t *testing.T) cri.RuntimeServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+c.RuntimeSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return cri.NewRuntimeServiceClient(conn)
}
