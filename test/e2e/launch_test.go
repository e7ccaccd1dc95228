package e2e

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/test/docs"
	"github.com/gpucdi/gpucdi/test/node/images"
)

const troubleshooting = "docs/troubleshooting.md"

// launch lets the doctor start a container, as that document says.
func launch(t *testing.T, c *cluster) {
	commands, err := docs.Blocks(t.Context(), troubleshooting, "Troubleshooting", "sh")
	if err != nil {
		t.Fatal(err)
	}
	// Of a GPU that a pod has, too.
	c.run(t, "holder", 8)
	c.awaitPhase(t, "holder", "Running")
	c.seenFromInside(t, strings.TrimSpace(commands[0]))
}

// launchOnNode does it without the agent's image: the program is the node's.
func launchOnNode(t *testing.T, c *cluster) {
	c.sh(t, `mkdir -p /opt/doctor; for p in /proc/[0-9]*; do [ "$(cat $p/comm)" != gpucdi ] || cp $p/root/usr/bin/gpucdi* /opt/doctor; done`)
	c.seenFromInside(t, "/opt/doctor/gpucdi doctor --launch --image "+images.DebianName+
		` --address "$(kubectl get pods --namespace gpucdi -o 'jsonpath={.items[0].status.podIP}'):9435"`)
}

// seenFromInside checks the report of a doctor that launches a container here: nothing
// fails, so that it ends with 0.
func (c *cluster) seenFromInside(t *testing.T, doctor string) {
	t.Helper()
	out := c.sh(t, doctor)
	first := c.driver.State().GPUs[0]
	for _, line := range []string{
		"pass  container      it runs from ",
		"pass  its libraries  libcuda.so.1 and libnvidia-ml.so.1 can be loaded\n",
		"pass  its GPU        NVML lists " + first.UUID + " and no other\n",
		// No kernel driver stands behind the simulated nodes: they may be opened, but nobody
		// answers, in the container as on the node.
		fmt.Sprintf("warn  its nodes      cannot open /dev/nvidia-uvm, /dev/nvidia-uvm-tools, /dev/nvidia%d, /dev/nvidiactl: "+
			"no such device or address; nor can the node itself\n", first.Minor),
	} {
		if !strings.Contains(out, line) {
			t.Errorf("the doctor does not report %q, but\n%s", line, out)
		}
	}
	if left := c.launched(t); len(left) > 0 {
		t.Errorf("the runtime still has %v", left)
	}
}

// launched are the pods that the doctor has left to the runtime.
func (c *cluster) launched(t *testing.T) []*cri.PodSandbox {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+c.RuntimeSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	pods, err := cri.NewRuntimeServiceClient(conn).ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{
		Filter: &cri.PodSandboxFilter{LabelSelector: map[string]string{"gpucdi.dev/launched": "true"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return pods.Items
}
