package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/kubelet"
	"github.com/gpucdi/gpucdi/runtime"
)

// containers compares the GPUs of running containers with their allocations.
func (e *examination) containers(ctx context.Context) []Finding {
	const check = checkContainers
	if e.inspected.GPUs == nil || e.containerRuntime.Name == "" {
		return skip(check, "requires GPUs and a container runtime")
	}
	if e.inspected.Shared {
		return skip(check, fmt.Sprintf("platform %s: device nodes do not identify GPUs", e.snapshot.Inventory.Platform))
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var running []runtime.Container
	for _, list := range runtime.ListRunning(ctx, e.Root, e.KubeletDir) {
		if list.Err != nil && !errors.Is(list.Err, runtime.ErrStopped) {
			return warn(check, gpu.OneLine(list.Err), "")
		}
		running = append(running, list.Containers...)
	}
	checkpoint, err := kubelet.ReadCheckpoint(filepath.Join(e.KubeletDir, "device-plugins"))
	if err != nil {
		return warn(check, gpu.OneLine(err), "")
	}
	claims, err := kubelet.PreparedClaims(e.Root, e.kubeletRoot())
	if err != nil {
		return warn(check, gpu.OneLine(err), "")
	}
	var holders []kubelet.Holder
	var findings []Finding
	if len(claims) > 0 {
		if holders, err = kubelet.Holders(ctx, e.Root.PodResources(e.KubeletDir)); err != nil {
			findings = warn(check, "containers with claims may lack their GPUs: "+gpu.OneLine(err), "")
		}
	}
	all := slices.Collect(maps.Keys(e.deviceNumbers()))
	return e.compare(running, kubelet.Allocations(cdi.AgentKind, all, checkpoint, claims, holders), findings...)
}

// compare compares the GPUs of containers, except privileged ones, with their allocations. It adds its findings to those
// found before; the check passes if there are none.
func (e *examination) compare(running []runtime.Container, allocations runtime.Allocations, findings ...Finding) []Finding {
	const check = checkContainers
	running = slices.DeleteFunc(running, func(c runtime.Container) bool { return c.Privileged })
	audit := runtime.NewAudit(running, allocations, e.deviceNumbers())
	for _, use := range audit.Lacking {
		findings = append(findings, fail(check, fmt.Sprintf("%s lacks %s, which is allocated to it", use, strings.Join(use.GPUs, ", ")),
			"delete its pod; the container was created while CDI was disabled")...)
	}
	for _, use := range audit.Foreign {
		findings = append(findings, warn(check, fmt.Sprintf("%s has %s, which is not allocated to it", use, strings.Join(use.GPUs, ", ")), e.remedyForeign(use))...)
	}
	if len(findings) > 0 {
		return findings
	}
	return pass(check, fmt.Sprintf("%d unprivileged containers have exactly their allocated GPUs", len(running)))
}

// deviceNumbers returns the numbers of the device nodes of GPUs and MIG devices that are not excluded, by UUID.
func (e *examination) deviceNumbers() map[string][]uint64 {
	return e.inspected.DeviceNumbers(e.settings.Policy().Excluded(e.snapshot.Inventory)...)
}

// kubeletRoot returns the kubelet's root directory on the node.
func (e *examination) kubeletRoot() string {
	_, node := e.Root.KubeletRoot(e.KubeletDir)
	return node
}

func (e *examination) remedyForeign(use runtime.Use) string {
	switch {
	case use.Pod.UID != "":
		return "no action required if a ResourceClaim allocated it; otherwise request GPUs as a resource, not with annotations or environment variables"
	case e.settings.Allocation.RespectForeignContainers:
		return "" // the GPUs are not advertised as available
	}
	return "stop it, or set allocation.respectForeignContainers to true; otherwise pods may share the GPU with it"
}
