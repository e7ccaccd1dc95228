package container_test

import (
	"encoding/json"
	"path"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/test/container"
)

// The hook limits EGL to the container's GPUs.
func TestHookSelectsGraphicsGPUs(t *testing.T) {
	t.Parallel()
	m := start(t, container.Config{})
	generateWithHook(t, m) // installs the hook
	generate(t, m, "--hook", hookFile, "--features", "graphics")
	gpus := m.Driver.State().GPUs
	for _, runtime := range runtimes {
		t.Run(path.Base(string(runtime)), func(t *testing.T) {
			spec, err := m.Spec(t.Context(), "nvidia.com/gpu="+gpus[2].UUID, "nvidia.com/gpu="+gpus[5].UUID)
			if err != nil {
				t.Fatal(err)
			}
			unprivileged(spec)
			v := launch(t, m, runtime, spec)
			text := strings.Join(v.exec("cat", "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"), "\n")
			var profile struct {
				Profiles []struct{ Settings []any }
			}
			if err := json.Unmarshal([]byte(text), &profile); err != nil || len(profile.Profiles) != 1 {
				t.Fatalf("%s: %v", text, err)
			}
			want := float64(uint64(1)<<gpus[2].Minor | uint64(1)<<gpus[5].Minor)
			if settings := profile.Profiles[0].Settings; len(settings) != 2 || settings[0] != "EGLVisibleDGPUDevices" || settings[1] != want {
				t.Errorf("settings are %v, want EGLVisibleDGPUDevices %v", settings, want)
			}
		})
	}
}
