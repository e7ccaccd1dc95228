package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/config"
	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/gpu/health"
	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/runtime"
	"github.com/gpucdi/gpucdi/status"
)

// Node configures the checks of a node.
type Node struct {
	Root       host.Root
	DriverRoot string // path on the node; empty: search the known driver roots
	Library    string // path of libnvidia-ml.so.1 on the node; empty: search the driver root
	KubeletDir string
	CDIDir     string
	Address    string // of the agent's HTTP server, "host:port"
	Program    string // path of gpucdi, which also runs in the launched container
	Worker     string // path of the driver worker; see driver.Config

	Name       string // of the node in Kubernetes; may be empty
	ConfigFile string // NodeConfig; empty: all defaults
	// Labels returns the labels of the Node object, for sections of the config that select by label.
	Labels func(context.Context) (map[string]string, error)

	Launch *Launch // nil: no container is launched

	Version string // of gpucdi, for Bundle
}

// Verdict is the result of a check.
type Verdict string

// The verdicts.
const (
	Pass Verdict = "pass"
	Warn Verdict = "warn" // pods may get GPUs nevertheless
	Fail Verdict = "fail"
	Skip Verdict = "skip" // an earlier check failed, or the check does not apply to this host
)

// Finding is a result of a check. A check may have several.
type Finding struct {
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	Message string  `json:"message"`
	Remedy  string  `json:"remedy,omitempty"` // empty if none is needed, or Message has it
}

// The names of the checks that concern Kubernetes.
const (
	checkRuntime    = "runtime"
	checkSpec       = "CDI spec"
	checkKubelet    = "kubelet"
	checkContainers = "containers"
	checkAgent      = "agent"
	checkDRA        = "DRA"
	checkLaunch     = "container"
)

// examination is a run of all checks. Its fields are results for later checks.
type examination struct {
	Node
	settings config.Config
	driver   *host.DriverRoot // nil: not found
	snapshot *driver.Snapshot // nil: driver not read
	health   health.Tracker

	inspected cdi.Parts // GPUs is nil: not inspected

	containerRuntime runtime.Info // Name is empty: not detected

	status    status.Node // of the agent
	statusErr error
}

// Examine runs all checks in order and reports each finding, until ctx ends. On a host without Kubernetes,
// the checks that concern Kubernetes are skipped.
func Examine(ctx context.Context, n Node, report func(Finding)) {
	newExamination(ctx, n).run(ctx, report)
}

func newExamination(ctx context.Context, n Node) *examination {
	e := &examination{Node: n, settings: config.Default()}
	e.status, e.statusErr = status.Fetch(ctx, n.Address)
	return e
}

func (e *examination) run(ctx context.Context, report func(Finding)) {
	checks := []func(context.Context) []Finding{e.config, e.hardware, e.module, e.files, e.nvml, e.gpus, e.memoryLimits, e.isolation, e.parts}
	if reason := e.withoutKubernetes(); reason != "" {
		checks = append(checks, func(context.Context) []Finding { return e.skipKubernetes(reason) })
	} else {
		checks = append(checks, e.runtime, e.spec, e.kubelet, e.containers, e.agent, e.dra, e.launch)
	}
	for _, check := range checks {
		for _, f := range check(ctx) {
			report(f)
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// withoutKubernetes returns the reason why the host is not a Kubernetes node; empty if it is one.
func (e *examination) withoutKubernetes() string {
	if e.statusErr == nil || exists(e.KubeletDir) {
		return ""
	}
	if _, err := e.Root.Stat(e.KubeletDir); !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return fmt.Sprintf("host without Kubernetes: no kubelet directory %s (--kubelet-dir)", e.KubeletDir)
}

func (e *examination) skipKubernetes(reason string) (findings []Finding) {
	names := []string{checkRuntime, checkSpec, checkKubelet, checkContainers, checkAgent}
	if e.Launch != nil {
		names = append(names, checkLaunch)
	}
	for _, check := range names {
		findings = append(findings, skip(check, reason)...)
	}
	return findings
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func pass(check, message string) []Finding {
	return []Finding{{Check: check, Verdict: Pass, Message: message}}
}

func warn(check, message, remedy string) []Finding {
	return []Finding{{check, Warn, message, remedy}}
}

func fail(check, message, remedy string) []Finding {
	return []Finding{{check, Fail, message, remedy}}
}

func skip(check, message string) []Finding {
	return []Finding{{Check: check, Verdict: Skip, Message: message}}
}
