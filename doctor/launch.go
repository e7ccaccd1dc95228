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

// Launch says which container to launch.
type Launch struct {
	Image  string // that the node has; empty: the agent's
	Device string // the UUID of a GPU or of a MIG device; empty: the first that is healthy
}

// ProbeCommand is the command of gpucdi that runs Probe, or with --idle does nothing for a time.
const ProbeCommand = "probe"

// idleFor bounds the life of a container that nobody has removed.
const idleFor = "5m"

// launched starts a container as the kubelet would, and looks from inside at what
// it has been given.
func (e *examination) launched(ctx context.Context) []Finding {
	const link = "container"
	if e.Launch == nil {
		return nil
	}
	if e.container.Name == "" {
		return skip(link, "there is no runtime to launch it with")
	}
	given, err := cdi.AgentFile(e.CDIDir, e.Root).Given()
	if err != nil {
		return skip(link, "there is no CDI spec to launch it with")
	}
	device := e.Launch.Device
	if device == "" {
		device = e.healthy(given)
	}
	wanted, known := given[device]
	switch {
	case device == "":
		return skip(link, "no GPU is known to be healthy; --device launches it with one all the same")
	case !known:
		return fail(link, "the CDI spec has no device "+device, "take one of "+strings.Join(slices.Sorted(maps.Keys(given)), ", "))
	}
	wanted.Files = slices.DeleteFunc(wanted.Files, func(name string) bool { return name != cudaName && name != host.NVMLName })

	seen, image, err := e.see(ctx, device, wanted)
	switch {
	case errors.Is(err, runtime.ErrNoImage):
		return fail(link, err.Error(), "name an image that is on the node, and has glibc, with --image")
	case err != nil:
		return fail(link, gpu.OneLine(err), "what fails above says why, or else the runtime's log")
	}
	seen.onNode = e.unanswered(seen.Nodes)
	return append(pass(link, fmt.Sprintf("it runs from %s with %s", image, device)), seen.findings(device)...)
}

// unanswered opens on the node itself what no driver answers for in the container, and
// returns what that led to.
func (e *examination) unanswered(inside map[string]syscall.Errno) map[string]syscall.Errno {
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

// see launches the container and returns what it sees.
func (e *examination) see(ctx context.Context, device string, wanted cdi.Given) (seen sight, image string, err error) {
	l := runtime.Launch{
		Image:  e.Launch.Image,
		Device: cdi.AgentKind + "=" + device,
		Idle:   []string{e.Program, ProbeCommand, "--idle", idleFor},
		Probe:  slices.Concat([]string{e.Program, ProbeCommand}, wanted.Nodes, wanted.Files),
	}
	// In the agent's pod they are files of the image; on the node, files of the node.
	if e.Root.LocalPath("/") == "/" {
		l.Programs = []string{e.Program, e.Worker}
	}
	printed, image, err := e.container.Launch(ctx, e.Root, l)
	if err != nil {
		return sight{}, "", err
	}
	if err := json.Unmarshal(printed, &seen.contents); err != nil {
		return sight{}, "", fmt.Errorf("reading what the container of %s sees: %w: %s", image, err, printed)
	}
	return seen, image, nil
}

// healthy is the first GPU or MIG device that pods would be given.
func (e *examination) healthy(given map[string]cdi.Given) string {
	if e.reading == nil {
		return ""
	}
	inventory := e.reading.Inventory
	for _, uuid := range usable(inventory.GPUs) {
		_, offered := given[uuid]
		of, _ := inventory.Find(uuid)
		if offered && of.Fault.None() && inventory.Fault(uuid).None() && e.health.Fault(of.UUID).None() {
			return uuid
		}
	}
	return ""
}

// usable are the GPUs and MIG devices that programs can use. A GPU in MIG mode is
// there only through its MIG devices.
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

// sight is what a container sees.
type sight struct {
	contents
	onNode map[string]syscall.Errno // what opening some of the nodes led to on the node itself
}

// findings judge what a container sees that was given a device alone.
func (s sight) findings(device string) []Finding {
	return slices.Concat(s.nodes(), s.libraries(), s.gpus(device))
}

func (s sight) nodes() []Finding {
	const link = "its nodes"
	type reason struct {
		errno  syscall.Errno
		shared bool // by the node itself
	}
	closed := map[reason][]string{}
	for node, errno := range s.Nodes {
		if errno != 0 {
			onNode, tried := s.onNode[node]
			why := reason{errno, tried && onNode == errno}
			closed[why] = append(closed[why], node)
		}
	}
	var findings []Finding
	for why, nodes := range closed {
		slices.Sort(nodes)
		says := fmt.Sprintf("cannot open %s: %s", strings.Join(nodes, ", "), why.errno)
		if why.shared {
			// The container has what the node has. That the numbers are the driver's is
			// checked with the CDI parts.
			findings = append(findings, warn(link, says+"; nor can the node itself", "no driver answers at their numbers: reload the kernel module; a simulated driver has none")...)
			continue
		}
		findings = append(findings, fail(link, says, fixNodes(why.errno))...)
	}
	if len(findings) > 0 {
		slices.SortFunc(findings, func(a, b Finding) int { return strings.Compare(a.Says, b.Says) })
		return findings
	}
	return pass(link, fmt.Sprintf("all %d are there and open", len(s.Nodes)))
}

// fixNodes is what to do about nodes whose opening led to an error.
func fixNodes(errno syscall.Errno) string {
	switch errno {
	case syscall.ENOENT:
		return "the runtime has left the CDI device out: turn its CDI on"
	case syscall.EPERM, syscall.EACCES:
		return "something beside CDI rules which devices containers may use"
	}
	return "no driver answers at their numbers: reload the kernel module, and gpucdi serve writes the new ones"
}

func (s sight) libraries() []Finding {
	const link = "its libraries"
	if len(s.Libraries) == 0 {
		return skip(link, "by cdi.features containers get neither CUDA nor NVML")
	}
	var findings []Finding
	for _, library := range slices.Sorted(maps.Keys(s.Libraries)) {
		if says := s.Libraries[library]; says != "" {
			findings = append(findings, fail(link, says, "the image's loader does not find it: docs/images.md tells which images can work")...)
		}
	}
	if len(findings) > 0 {
		return findings
	}
	return pass(link, strings.Join(slices.Sorted(maps.Keys(s.Libraries)), " and ")+" can be loaded")
}

func (s sight) gpus(device string) []Finding {
	const link = "its GPU"
	seen := usable(s.GPUs)
	switch says, asked := s.Libraries[host.NVMLName]; {
	case !asked:
		return skip(link, "by cdi.features containers get no NVML to ask")
	case says != "":
		return skip(link, "there is no NVML to ask")
	case s.NVMLError != "":
		return fail(link, s.NVMLError, "")
	case !slices.Equal(seen, []string{device}):
		return fail(link, fmt.Sprintf("NVML lists %q, not %s alone", seen, device),
			"something beside CDI gives GPUs to containers, such as an NVIDIA runtime: turn it off")
	}
	return pass(link, "NVML lists "+device+" and no other")
}
