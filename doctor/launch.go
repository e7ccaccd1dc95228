package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/runtime"
)

// Launch configures the container to launch.
type Launch struct {
	Image  string // present on the node; empty: the image of the agent
	Device string // UUID of a GPU or MIG device; empty: the first healthy one
}

// ProbeCommand is the gpucdi command that runs Probe, or sleeps with --idle.
const ProbeCommand = "probe"

// idleFor bounds the lifetime of a container that could not be removed.
const idleFor = "5m"

// textLimit bounds each text from the container, in bytes.
const textLimit = 1024

// launch starts a container as the kubelet would, and inspects it from inside.
func (e *examination) launch(ctx context.Context) []Finding {
	const check = checkLaunch
	if e.Launch == nil {
		return nil
	}
	if e.containerRuntime.Name == "" {
		return skip(check, "requires a container runtime")
	}
	devices, err := cdi.AgentFile(e.CDIDir, e.Root).DeviceEdits()
	if err != nil {
		return skip(check, "requires the CDI spec of the agent")
	}
	device := e.Launch.Device
	if device == "" {
		device = e.healthy(devices)
	}
	wanted, known := devices[device]
	switch {
	case device == "":
		return skip(check, "no healthy GPU found; set --device to use one regardless")
	case !known:
		return fail(check, "the CDI spec has no device "+device, "set --device to one of "+strings.Join(slices.Sorted(maps.Keys(devices)), ", "))
	}
	// Probe tests only these two of the mounted files.
	wanted.Files = slices.DeleteFunc(wanted.Files, func(name string) bool { return name != cudaName && name != host.NVMLName })

	got, image, err := e.probe(ctx, device, wanted)
	switch {
	case errors.Is(err, runtime.ErrNoAgent):
		return fail(check, err.Error(), "deploy gpucdi on this node; if its pod exists, check why it is not running")
	case err != nil:
		return fail(check, gpu.OneLine(err), e.remedyLaunch())
	}
	got.onNode = e.openOnNode(got.Nodes)
	return append(pass(check, fmt.Sprintf("started from image %s with device %s", image, device)), got.findings(device)...)
}

// openOnNode opens, on the node itself, the device nodes that could not be opened in the container for lack of a driver
// (ENXIO, ENODEV). It returns the result of each; 0 is success. inside must contain only device nodes of the CDI spec.
func (e *examination) openOnNode(inside map[string]syscall.Errno) map[string]syscall.Errno {
	onNode := map[string]syscall.Errno{}
	for name, errno := range inside {
		if errno != syscall.ENXIO && errno != syscall.ENODEV {
			continue
		}
		resolved, err := e.Root.Resolve(name)
		if err != nil {
			continue
		}
		file, err := os.OpenFile(e.Root.LocalPath(resolved), os.O_RDWR|syscall.O_NONBLOCK, 0)
		if err == nil {
			_ = file.Close()
		}
		onNode[name] = 0
		if found := syscall.Errno(0); errors.As(err, &found) {
			onNode[name] = found
		}
	}
	return onNode
}

// probe launches the container and returns the result of Probe in it, and the image.
func (e *examination) probe(ctx context.Context, device string, wanted cdi.Edits) (got probed, image string, err error) {
	l := runtime.Launch{
		Image:  e.Launch.Image,
		Device: cdi.AgentKind + "=" + device,
		Idle:   []string{e.Program, ProbeCommand, "--idle", idleFor},
		Probe:  slices.Concat([]string{e.Program, ProbeCommand}, wanted.Nodes, wanted.Files),
	}
	if e.mountsPrograms() {
		l.Programs = []string{e.Program, e.Worker}
	}
	printed, image, err := e.containerRuntime.Launch(ctx, e.Root, l)
	if err != nil {
		return probed{}, "", err
	}
	if got.contents, err = decode(printed, wanted); err != nil {
		return probed{}, "", fmt.Errorf("reading the output of the container of %s: %w", image, err)
	}
	return got, image, nil
}

// mountsPrograms reports whether the programs of this process can be mounted in the container: only if the process has
// the file system of the node. In a pod, the image must contain them, as the agent's image does.
func (e *examination) mountsPrograms() bool { return e.Root.LocalPath("/") == "/" }

// remedyLaunch returns the remedy for a container that cannot be launched.
func (e *examination) remedyLaunch() string {
	const remedy = "fix the failed checks above; if there are none, see the log of the container runtime"
	if e.Launch.Image == "" || e.mountsPrograms() {
		return remedy
	}
	return fmt.Sprintf("if the image does not contain %s and %s, run the doctor on the node, which mounts them; otherwise %s", e.Program, e.Worker, remedy)
}

// decode decodes the output of Probe. The image can print anything, so decode keeps only the requested nodes and files,
// and limits the texts.
func decode(printed []byte, wanted cdi.Edits) (contents, error) {
	var c contents
	if err := json.Unmarshal(printed, &c); err != nil {
		return contents{}, fmt.Errorf("%w: %s", err, host.Printable(string(printed), textLimit))
	}
	maps.DeleteFunc(c.Nodes, func(name string, _ syscall.Errno) bool { return !slices.Contains(wanted.Nodes, name) })
	maps.DeleteFunc(c.Libraries, func(name, _ string) bool { return !slices.Contains(wanted.Files, name) })
	for name, message := range c.Libraries {
		c.Libraries[name] = host.Printable(message, textLimit)
	}
	c.NVMLError = host.Printable(c.NVMLError, textLimit)
	return c, nil
}

// healthy returns the first healthy GPU or MIG device that has a CDI device; empty if there is none.
func (e *examination) healthy(devices map[string]cdi.Edits) string {
	if e.snapshot == nil {
		return ""
	}
	inventory := e.snapshot.Inventory
	for _, uuid := range usable(inventory.GPUs) {
		_, exists := devices[uuid]
		parent, _ := inventory.Find(uuid)
		if exists && parent.Fault.None() && inventory.Fault(uuid).None() && e.health.Fault(parent.UUID).None() {
			return uuid
		}
	}
	return ""
}

// usable returns the UUIDs of the devices that programs can use: MIG devices, and GPUs that are not in MIG
// mode.
func usable(gpus []gpu.GPU) (uuids []string) {
	for _, g := range gpus {
		if g.MIG != gpu.MIGEnabled {
			uuids = append(uuids, g.UUID)
		}
		for _, m := range g.MIGDevices {
			uuids = append(uuids, m.UUID)
		}
	}
	return uuids
}

// probed is the result of a probe of a container and, for comparison, of the node.
type probed struct {
	contents
	onNode map[string]syscall.Errno // results of opening some of Nodes on the node itself
}

// findings evaluates a container that has only the given device.
func (p probed) findings(device string) []Finding {
	return slices.Concat(p.nodes(), p.libraries(), p.gpus(device))
}

func (p probed) nodes() []Finding {
	const check = "device nodes"
	type failure struct {
		errno  syscall.Errno
		onNode bool // the same error on the node itself
	}
	failures := map[failure][]string{}
	for node, errno := range p.Nodes {
		if errno != 0 {
			onNode, opened := p.onNode[node]
			f := failure{errno, opened && onNode == errno}
			failures[f] = append(failures[f], node)
		}
	}
	var findings []Finding
	for f, nodes := range failures {
		slices.Sort(nodes)
		message := fmt.Sprintf("cannot open %s: %s", strings.Join(nodes, ", "), f.errno)
		if f.onNode {
			// Injection works: the container has the device nodes of the node. Their device numbers are
			// checked with the CDI edits.
			findings = append(findings, warn(check, message+"; the same on the node",
				"reload the kernel module: no driver serves these device numbers; expected with a simulated driver")...)
			continue
		}
		findings = append(findings, fail(check, message, remedyNodes(f.errno))...)
	}
	if len(findings) > 0 {
		slices.SortFunc(findings, func(a, b Finding) int { return strings.Compare(a.Message, b.Message) })
		return findings
	}
	return pass(check, fmt.Sprintf("all %d device nodes can be opened", len(p.Nodes)))
}

// remedyNodes returns the remedy for an error of opening device nodes.
func remedyNodes(errno syscall.Errno) string {
	switch errno {
	case syscall.ENOENT:
		return "enable CDI in the container runtime, which did not inject the CDI device"
	case syscall.EPERM, syscall.EACCES:
		return "find another restriction on devices of containers, such as a security module"
	}
	return "reload the kernel module: no driver serves these device numbers; gpucdi serve then updates the CDI spec"
}

func (p probed) libraries() []Finding {
	const check = "libraries"
	if len(p.Libraries) == 0 {
		return skip(check, fmt.Sprintf("the CDI spec has neither %s nor %s", cudaName, host.NVMLName))
	}
	var findings []Finding
	for _, library := range slices.Sorted(maps.Keys(p.Libraries)) {
		if message := p.Libraries[library]; message != "" {
			findings = append(findings, fail(check, message, "use an image whose loader finds it; see docs/images.md")...)
		}
	}
	if len(findings) > 0 {
		return findings
	}
	return pass(check, strings.Join(slices.Sorted(maps.Keys(p.Libraries)), " and ")+" can be loaded")
}

func (p probed) gpus(device string) []Finding {
	const check = "visible GPUs"
	visible := usable(p.GPUs)
	switch message, found := p.Libraries[host.NVMLName]; {
	case !found:
		return skip(check, "the CDI spec has no "+host.NVMLName)
	case message != "":
		return skip(check, "requires NVML")
	case p.NVMLError != "":
		return fail(check, p.NVMLError, "")
	case !slices.Equal(visible, []string{device}):
		return fail(check, fmt.Sprintf("NVML lists %s, not only %s", host.Printable(fmt.Sprintf("%q", visible), textLimit), device),
			"disable other GPU injection, such as the NVIDIA container runtime")
	}
	return pass(check, "NVML lists "+device+" and no other")
}
