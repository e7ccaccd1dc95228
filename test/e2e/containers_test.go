package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpucdi/gpucdi/test/node/images"
)

// foreignContainer checks that a nerdctl container with a GPU is reported, and that respectForeignContainers reserves
// its GPU. On a node with CRI-O, nerdctl uses a second containerd, as Docker does.
func foreignContainer(t *testing.T, c *cluster) {
	if name, _ := c.runtime(t); name == "cri-o" {
		c.startSecondContainerd(t)
	}
	c.loadDebian(t)
	gpu := c.driver.State().GPUs[3].UUID
	c.sh(t, "nerdctl run --detach --name foreign --network none --device gpucdi.dev/gpu="+gpu+" "+images.DebianName+" sleep infinity")
	remove := func() {
		t.Helper()
		rm := c.Box.Command(context.Background(), "sh", "-c", path+" nerdctl rm --force foreign 2>&1") // t.Context() is canceled before the cleanup
		if out, err := rm.Output(); err != nil && !strings.Contains(string(out), "no such container") {
			t.Errorf("removing the container: %v\n%s", err, out)
		}
	}
	t.Cleanup(remove)

	const named = "container foreign (containerd namespace default)"
	c.awaitOutput(t, named, c.status)
	if out := c.status(t); !strings.Contains(out, "not allocated") || strings.Contains(out, "lacks") {
		t.Errorf("gpucdi status prints\n%s", out)
	}
	if out := c.doctor(t); !strings.Contains(out, "warn  containers") || !strings.Contains(out, named+" has "+gpu) {
		t.Errorf("gpucdi doctor prints\n%s", out)
	}
	c.awaitGPUs(t, "8")

	c.configure(t, "allocation: {respectForeignContainers: true}\n")
	c.awaitGPUs(t, "7")
	c.awaitEvent(t, "Warning", "GPUUnhealthy", gpu+") is unhealthy: used outside Kubernetes by "+named)
	c.run(t, "rest", 7)
	c.awaitPhase(t, "rest", "Running")
	if held := c.gpusOf(t, "rest"); len(held) != 7 || slices.Contains(held, gpu) {
		t.Errorf("pod has GPUs %v, want 7 without %s, which nerdctl uses", held, gpu)
	}
	c.remove(t, "rest")
	remove()
	c.awaitGPUs(t, "8")
	c.configure(t, "")
}

// checkPodWithoutGPU checks that status, Event and doctor report a pod that was started without its GPUs while CDI was
// disabled.
func (c *cluster) checkPodWithoutGPU(t *testing.T, pod string) {
	t.Helper()
	c.awaitOutput(t, "default/"+pod+"/main", func(t *testing.T) string {
		_, containers, _ := strings.Cut(c.status(t), "CONTAINER")
		return containers
	})
	if out := c.status(t); !strings.Contains(out, "lacks its GPU") || strings.Contains(out, "not allocated") {
		t.Errorf("gpucdi status prints\n%s", out)
	}
	c.awaitEvent(t, "Warning", "PodWithoutGPU", "without their allocated GPUs; delete their pods, so that replacements start with CDI: default/"+pod+"/main")
	if out := c.doctor(t); !strings.Contains(out, "fail  containers") || !strings.Contains(out, "default/"+pod+"/main lacks GPU-") {
		t.Errorf("gpucdi doctor prints\n%s", out)
	}
}

// status returns the output of gpucdi status, and its errors: the kubelet can replace the agent's container in the
// seconds after the runtime has restarted.
func (c *cluster) status(t *testing.T) string {
	t.Helper()
	return c.inAgent(t, "status")
}

func (c *cluster) doctor(t *testing.T) string {
	t.Helper()
	return c.inAgent(t, "doctor")
}

// inAgent runs a command of gpucdi in the agent's container, and returns its output even if it fails.
func (c *cluster) inAgent(t *testing.T, command ...string) string {
	t.Helper()
	args := append([]string{"exec", "--namespace", "gpucdi", "daemonset/gpucdi", "--", "gpucdi"}, command...)
	out, err := c.Kubectl(t.Context(), args...)
	if err != nil {
		return fmt.Sprintf("%s\n%v", out, err)
	}
	return string(out)
}

// loadDebian loads the Debian image into nerdctl's containerd namespace, which does not share images with the
// kubelet's namespace.
func (c *cluster) loadDebian(t *testing.T) {
	t.Helper()
	archive, err := images.Debian(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	load := c.Box.Command(t.Context(), "sh", "-c", path+" nerdctl load")
	load.Stdin = file
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("loading %s: %v\n%s", archive, err, out)
	}
}

// startSecondContainerd starts a containerd that serves no kubelet, and stops it when the test ends.
func (c *cluster) startSecondContainerd(t *testing.T) {
	t.Helper()
	const config = "/etc/containerd-docker.toml"
	if err := os.WriteFile(c.Box.Path(config), []byte("version = 3\ndisabled_plugins = ['io.containerd.grpc.v1.cri']\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	daemon := c.Box.Command(ctx, "sh", "-c", path+" exec containerd --log-level warn --config "+config)
	daemon.Cancel = func() error { return daemon.Process.Signal(syscall.SIGTERM) }
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = daemon.Wait()
	})
	await(t, "the second containerd", func() (string, bool) {
		out, err := c.Box.Command(t.Context(), "sh", "-c", path+" ctr version").CombinedOutput()
		return string(out), err == nil
	})
}
