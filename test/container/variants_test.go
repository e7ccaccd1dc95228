package container_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/container"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

// graphicsConfig advertises GPU 2 as a resource that adds graphics to the features of the node.
const graphicsConfig = `
apiVersion: gpucdi.dev/v1
kind: NodeConfig
resources: [{select: {index: [2]}, name: nvidia.com/gpu-graphics, features: [graphics]}]
`

// A variant of a CDI device adds a feature. Only containers with the variant have the files and device nodes of that
// feature. All containers have video, which is on by default if the driver supports it.
func TestVariants(t *testing.T) {
	t.Parallel()
	m := start(t, container.Config{Tools: []tools.Tool{tools.Containerd, tools.Nerdctl}})
	runAgent(t, m, graphicsConfig, "/etc/cdi/gpucdi.dev-gpu-graphics.json")
	gpu := m.Driver.State().GPUs[2]
	plain := "gpucdi.dev/gpu=" + gpu.UUID
	ffmpeg := []string{"libnvcuvid.so.1", "libnvidia-encode.so.1", "libcuda.so.1"}
	for name, graphics := range map[string]bool{plain: false, plain + ".graphics": true} {
		t.Run(name, func(t *testing.T) {
			spec, err := m.Spec(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			v := launch(t, m, container.Runc, spec)
			v.checkSMI([]int{2})
			v.expect("dlopen", ffmpeg, "ok")
			devices := v.exec("probe", "list", "/dev")
			if !graphics {
				if slices.Contains(devices, "dri") || slices.Contains(devices, "nvidia-modeset") {
					t.Errorf("the container has devices %v", devices)
				}
				return
			}
			v.expect("dlopen", []string{"libEGL_nvidia.so.0", "libGLX_nvidia.so.0"}, "ok")
			if !slices.Contains(devices, "nvidia-modeset") || len(v.exec("probe", "list", "/dev/dri")) < 2 {
				t.Errorf("the container has devices %v", devices)
			}
			v.checkMounts()
		})
	}
	startContainerd(t, m, "containerd")
	loadDebian(t, m, "nerdctl")
	t.Run("nerdctl", func(t *testing.T) {
		out, err := run(t, m, []string{"nerdctl"}, []string{"--device", plain + ".graphics"}, "sh", "-c", "nvidia-smi -L && ls /dev/dri /usr/share/glvnd/egl_vendor.d")
		if err != nil || !strings.Contains(out, gpu.UUID) || !strings.Contains(out, "renderD") || !strings.Contains(out, "nvidia.json") {
			t.Errorf("the container prints %s, %v", out, err)
		}
	})
}

// runAgent runs an agent in the box, without a kubelet, until the test ends, and waits until it has written a file.
func runAgent(t *testing.T, m *container.Machine, config, file string) {
	t.Helper()
	const path = "/etc/gpucdi.yaml"
	if err := os.WriteFile(m.Path(path), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	agent := m.Command(t.Context(), "gpucdi", "serve", "--config", path, "--cdi-dir", "/etc/cdi", "--listen", "")
	agent.Stdout, agent.Stderr = t.Output(), t.Output()
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Wait() }) // the test's context ends before cleanups
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(m.Path(file)); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the agent has not written %s", file)
		}
	}
}
