package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/runtime"
)

// askWithin is what a runtime or a kubelet may take to answer.
const askWithin = 10 * time.Second

func (e *examination) runtime(ctx context.Context) []Finding {
	const link = "runtime"
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	info, err := runtime.Detect(ctx, e.Root, e.KubeletDir)
	if err != nil {
		return fail(link, gpu.OneLine(err), "start it, or mount its socket below --host-root")
	}
	e.container = info
	if problem := info.Problem(e.CDIDir); problem != "" {
		return fail(link, problem, "")
	}
	return pass(link, fmt.Sprintf("%s %s does CDI", info.Name, info.Version))
}

func (e *examination) spec(context.Context) []Finding {
	const link = "CDI spec"
	file := cdi.AgentFile(e.CDIDir, e.Root)
	err := file.Verify()
	switch {
	case errors.Is(err, fs.ErrNotExist) && !exists(file.Path):
		return fail(link, "there is no "+file.Path, "gpucdi serve writes it when all above is well")
	case err != nil:
		return fail(link, gpu.OneLine(err), "gpucdi serve puts its own spec right; its log says what keeps it from that")
	}
	return pass(link, file.Path+" can be used")
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (e *examination) kubelet(ctx context.Context) []Finding {
	const link = "kubelet"
	socket := filepath.Join(e.KubeletDir, "device-plugins", "kubelet.sock")
	if _, err := os.Stat(socket); err != nil {
		return fail(link, fmt.Sprintf("it does not listen: %v", err), "start the kubelet, or name its directory with --kubelet-dir")
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	var findings []Finding
	if _, err := kubelet.Held(ctx, e.Root.PodResources(e.KubeletDir)); err != nil {
		findings = warn(link, gpu.OneLine(err), "without it nobody knows which pods hold GPUs, and one that is gone stays listed")
	}
	findings = append(findings, nvidiaPlugin(ctx, filepath.Dir(socket))...)
	if len(findings) > 0 {
		return findings
	}
	return pass(link, "it listens for device plugins and reports its pods")
}

// nvidiaPlugin reports NVIDIA's device plugin, by its sockets, nvidia-<resource>.sock.
func nvidiaPlugin(ctx context.Context, dir string) []Finding {
	names, err := kubelet.Serving(ctx, dir)
	if err != nil {
		return nil // the kubelet's socket is there, and all else is for the agent to report
	}
	for _, name := range names {
		if strings.HasPrefix(name, "nvidia-") {
			return warn("kubelet", "NVIDIA's device plugin runs on this node too: "+filepath.Join(dir, name),
				"the kubelet takes each resource from the plugin that registered last; remove one of the two: docs/moving.md")
		}
	}
	return nil
}

func (e *examination) agent(context.Context) []Finding {
	const link = "agent"
	if e.statusErr != nil {
		return fail(link, e.statusErr.Error(), "start gpucdi serve; its log says why it ended")
	}
	node := e.status
	var findings []Finding
	for _, r := range node.Kubelet.Resources {
		if r.Trouble != "" {
			findings = append(findings, fail(link, fmt.Sprintf("%s is not registered with the kubelet: %s", r.Name, r.Trouble), "")...)
		}
	}
	sick := 0
	for _, d := range node.Devices {
		if !d.Fault.None() {
			sick++
		}
	}
	switch {
	case len(node.Kubelet.Resources) == 0:
		findings = append(findings, fail(link, "it offers nothing yet", "wait until it has read the driver")...)
	case sick > 0:
		findings = append(findings, warn(link, fmt.Sprintf("%d of %d devices are unhealthy", sick, len(node.Devices)), "gpucdi status says why")...)
	}
	if len(findings) > 0 {
		return findings
	}
	return pass(link, fmt.Sprintf("gpucdi %s offers %d devices", node.Version, len(node.Devices)))
}
