package doctor

import (
	"context"

	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/runtime"
	"github.com/gpucdi/gpucdi/status"
)

// Node says where the parts of a node are.
type Node struct {
	Root       host.Root
	DriverRoot string // the node's path; empty: the known places
	Library    string // the node's path of NVML; empty: found in the driver root
	KubeletDir string
	CDIDir     string
	Address    string // where the agent listens
	Program    string // path of gpucdi, which probes a launched container
	Worker     string // the driver worker; see driver.Config

	Name       string // of the node in Kubernetes; may be empty
	ConfigFile string // NodeConfig; empty: all keys have their defaults
	// Labels reads the node's labels, which sections of the config may select by.
	Labels func(context.Context) (map[string]string, error)

	Launch *Launch // nil: no container is launched
}

// Verdict is how a link is.
type Verdict string

// The verdicts.
const (
	Pass Verdict = "pass"
	Warn Verdict = "warn" // pods may get GPUs all the same
	Fail Verdict = "fail"
	Skip Verdict = "skip" // an earlier link has to be mended first
)

// Finding is what was found at a link.
type Finding struct {
	Link    string
	Verdict Verdict
	Says    string
	Fix     string // what to do; empty when there is nothing to do, or Says has it
}

// examination is what is known so far of a node.
type examination struct {
	Node
	settings config.Config
	driver   *host.DriverRoot // nil: not found
	reading  *driver.Reading  // nil: the driver does not answer
	health   health.Tracker

	container runtime.Info // without a name: not found

	status    status.Node // the agent's
	statusErr error       // why there is none
}

// Examine inspects each link in turn and reports what it finds, until ctx ends.
func Examine(ctx context.Context, n Node, tell func(Finding)) {
	e := &examination{Node: n, settings: config.Default()}
	e.status, e.statusErr = status.Fetch(ctx, n.Address)
	for _, look := range []func(context.Context) []Finding{
		e.config, e.hardware, e.module, e.files, e.answers, e.gpus, e.parts, e.runtime, e.spec, e.kubelet, e.agent, e.launched,
	} {
		for _, f := range look(ctx) {
			tell(f)
		}
		if ctx.Err() != nil {
			return
		}
	}
}

func pass(link, says string) []Finding { return []Finding{{Link: link, Verdict: Pass, Says: says}} }

func warn(link, says, fix string) []Finding { return []Finding{{link, Warn, says, fix}} }

func fail(link, says, fix string) []Finding { return []Finding{{link, Fail, says, fix}} }

func skip(link, says string) []Finding { return []Finding{{Link: link, Verdict: Skip, Says: says}} }
