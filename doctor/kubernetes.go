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

// callTimeout bounds the calls to the container runtime or the kubelet in one check.
const callTimeout = 10 * time.Second

func (e *examination) runtime(ctx context.Context) []Finding {
	const check = checkRuntime
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info, err := runtime.Detect(ctx, e.Root, e.KubeletDir)
	if err != nil {
		return fail(check, gpu.OneLine(err), "start the container runtime, or mount its socket below --host-root")
	}
	e.containerRuntime = info
	if problem := info.Problem(e.CDIDir); problem != "" {
		return fail(check, problem, "")
	}
	return pass(check, fmt.Sprintf("%s %s has CDI enabled", info.Name, info.Version))
}

func (e *examination) spec(context.Context) []Finding {
	const check = checkSpec
	file := cdi.AgentFile(e.CDIDir, e.Root)
	err := file.Verify()
	switch {
	case errors.Is(err, fs.ErrNotExist) && !exists(file.Path):
		return fail(check, file.Path+" does not exist", "start gpucdi serve, which writes it once the checks above pass")
	case err != nil:
		return fail(check, gpu.OneLine(err), "gpucdi serve restores its spec; if it cannot, its log has the reason")
	}
	return append(pass(check, file.Path+" is valid"), e.variants()...)
}

// variants reports CDI specs of feature variants that runtimes cannot use. It only warns: a pod may hold a variant
// that no rule selects any more, and the driver may lack its feature.
func (e *examination) variants() (findings []Finding) {
	for _, f := range cdi.AllFeatures() {
		file := cdi.VariantFile(f, e.CDIDir, e.Root)
		if err := file.Verify(); err != nil && exists(file.Path) {
			findings = append(findings, warn(checkSpec, gpu.OneLine(err),
				"if a pod needs feature "+string(f)+", see the log of gpucdi serve; otherwise remove "+file.Path)...)
		}
	}
	return findings
}

func (e *examination) kubelet(ctx context.Context) []Finding {
	const check = checkKubelet
	socket := filepath.Join(e.KubeletDir, "device-plugins", "kubelet.sock")
	if _, err := os.Stat(socket); err != nil {
		return fail(check, fmt.Sprintf("no device plugin socket: %v", err), "start the kubelet, or set --kubelet-dir")
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var findings []Finding
	if _, err := kubelet.Holders(ctx, e.Root.PodResources(e.KubeletDir)); err != nil {
		findings = warn(check, gpu.OneLine(err),
			"mount the kubelet's pod-resources directory; without it, the pods that hold GPUs are unknown, and GPUs that are gone stay advertised as unhealthy")
	}
	findings = append(findings, nvidiaPlugin(ctx, filepath.Dir(socket))...)
	if len(findings) > 0 {
		return findings
	}
	return pass(check, "accepts device plugins and reports pod resources")
}

// nvidiaPlugin reports NVIDIA's device plugin, whose sockets are nvidia-<resource>.sock.
func nvidiaPlugin(ctx context.Context, dir string) []Finding {
	names, err := kubelet.ActiveSockets(ctx, dir)
	if err != nil {
		return nil // the kubelet check covers the directory
	}
	for _, name := range names {
		if strings.HasPrefix(name, "nvidia-") {
			return warn(checkKubelet, "NVIDIA's device plugin also runs on this node: "+filepath.Join(dir, name),
				"remove one of the two, since the kubelet uses the plugin that registered last; see docs/moving.md")
		}
	}
	return nil
}

func (e *examination) agent(context.Context) []Finding {
	const check = checkAgent
	if e.statusErr != nil {
		return fail(check, e.statusErr.Error(), "if gpucdi serve has ended, its log has the reason")
	}
	node := e.status
	var findings []Finding
	for _, r := range node.Kubelet.Resources {
		if r.Error != "" {
			findings = append(findings, fail(check, fmt.Sprintf("%s is not registered with the kubelet: %s", r.Name, r.Error), "")...)
		}
	}
	unhealthy := 0
	for _, d := range node.Devices {
		if !d.Fault.None() {
			unhealthy++
		}
	}
	switch {
	case len(node.Kubelet.Resources) == 0:
		findings = append(findings, fail(check, "no resource is advertised yet", "wait until the agent has read the driver")...)
	case unhealthy > 0:
		findings = append(findings, warn(check, fmt.Sprintf("%d of %d devices are unhealthy", unhealthy, len(node.Devices)), "see gpucdi status")...)
	}
	if len(findings) > 0 {
		return findings
	}
	return pass(check, fmt.Sprintf("gpucdi %s advertises %d devices", node.Version, len(node.Devices)))
}
