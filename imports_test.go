package gpucdi_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/gpucdi/gpucdi/"

// importRules lists the packages that each package may import. Data flows in one direction, from the driver to
// the kubelet; see docs/architecture.md.
var importRules = map[string]struct {
	imports []string
	reason  string
}{
	"gpu":               {nil, "the model is shared by all other packages"},
	"gpu/health":        {[]string{"gpu"}, "a state machine without a clock and without I/O"},
	"gpu/driver":        {[]string{"gpu", "gpu/health", "internal/host"}, "it reports inventories, independently of their use"},
	"gpu/nvml":          {[]string{"gpu", "gpu/driver", "gpu/health", "internal/host"}, "it runs in the driver worker, which depends on the driver only"},
	"cdi":               {[]string{"gpu", "internal/host"}, "a spec is a pure function of the inventory, the driver files and the features"},
	"allocator":         {[]string{"gpu"}, "plan and ledger are pure, so that Allocate does no I/O"},
	"kubelet":           {[]string{"gpu", "allocator", "internal/host", "internal/sockets", "internal/unixgrpc"}, "it serves a plan and reads the kubelet's files, without the driver and CDI specs"},
	"dra":               {[]string{"gpu", "allocator", "cluster", "internal/host", "internal/sockets", "internal/unixgrpc"}, "it describes devices and prepares claims that the gate grants, without the driver, CDI specs and requests to the API server"},
	"mps":               {[]string{"internal/host", "internal/sockets"}, "it controls a program of the driver, without NVML and CUDA"},
	"mps/probe":         {nil, "only the driver worker calls CUDA"},
	"runtime":           {[]string{"internal/host", "internal/unixgrpc"}, "it inspects only the container runtime"},
	"runtime/nri":       {[]string{"runtime", "internal/host"}, "it passes the runtime's calls on; the agent decides"},
	"cordon":            {[]string{"gpu", "internal/host", "internal/sockets"}, "files that admins write and the agent reads"},
	"status":            {[]string{"gpu"}, "a view: it has no state"},
	"labels":            {[]string{"gpu", "allocator"}, "a pure function; the agent applies them"},
	"cluster":           {nil, "an API client without decisions"},
	"metrics":           {[]string{"gpu", "status"}, "a view of the status, with counters"},
	"config":            {[]string{"allocator", "cdi", "gpu/health", "kubelet"}, "a file format for types that other packages own"},
	"doctor":            {[]string{"allocator", "config", "gpu", "gpu/health", "gpu/driver", "cdi", "kubelet", "runtime", "status", "internal/host"}, "it checks every component without the agent"},
	"agent":             {[]string{"config", "cordon", "gpu", "gpu/health", "gpu/driver", "cdi", "allocator", "kubelet", "dra", "mps", "runtime", "runtime/nri", "labels", "cluster", "status", "metrics", "internal/host"}, "it wires all packages"},
	"vcuda":             {[]string{"allocator", "cluster"}, "a controller of the cluster, without a node"},
	"cmd/gpucdi":        {[]string{"agent", "allocator", "cdi", "cluster", "config", "cordon", "doctor", "gpu", "gpu/driver", "labels", "mps", "status", "vcuda", "internal/host"}, "flags become a Config; no logic"},
	"cmd/gpucdi-nvml":   {[]string{"gpu", "gpu/nvml", "internal/host", "mps/probe"}, "the driver worker is limited to the driver's libraries"},
	"cmd/gpucdi-hook":   {[]string{"internal/ldcache"}, "it handles untrusted images, so it is minimal"},
	"internal/host":     {nil, "internal packages are independent of each other"},
	"internal/sockets":  {nil, "internal packages are independent of each other"},
	"internal/unixgrpc": {nil, "internal packages are independent of each other"},
	"internal/ldcache":  {nil, "internal packages are independent of each other"},
}

// owners lists the only packages that may import packages with a prefix.
var owners = []struct {
	prefix   string
	packages []string
	reason   string
}{
	{"github.com/NVIDIA/go-nvml", []string{"gpu/nvml"}, "only the driver worker loads NVML"},
	{"google.golang.org/grpc", []string{"kubelet", "dra", "runtime", "internal/unixgrpc"}, "other packages neither serve nor call the kubelet and the runtime"},
	{"k8s.io/", []string{"kubelet", "dra", "runtime", "config"}, "the model must not depend on releases of Kubernetes"},
	{"github.com/containerd", []string{"runtime", "runtime/nri"}, "only package runtime and its subpackage depend on the API of a runtime"},
	{"github.com/prometheus", []string{"metrics"}, "only one package depends on the metrics library"},
	{"tags.cncf.io/container-device-interface", []string{"cdi", "kubelet", "cmd/gpucdi"}, "other packages use package cdi"},
	{"github.com/gpucdi/gpucdi/test", nil, "the product does not depend on the test module"},
}

func TestImports(t *testing.T) {
	seen := map[string]bool{}
	for _, pkg := range packages(t) {
		name := strings.TrimPrefix(pkg.ImportPath, module)
		rule, known := importRules[name]
		if !known {
			t.Errorf("%s has no rule; add it here and in docs/architecture.md", name)
			continue
		}
		seen[name] = true
		for _, imported := range pkg.Imports {
			if target, ours := strings.CutPrefix(imported, module); ours && !slices.Contains(rule.imports, target) {
				t.Errorf("%s imports %s: %s", name, target, rule.reason)
			}
			for _, owner := range owners {
				if strings.HasPrefix(imported, owner.prefix) && !slices.Contains(owner.packages, name) {
					t.Errorf("%s imports %s: %s", name, imported, owner.reason)
				}
			}
		}
	}
	for name := range importRules {
		if !seen[name] {
			t.Errorf("%s has a rule but does not exist", name)
		}
	}
}

// Linked packages add to the start time of a program. The container runtime runs gpucdi-hook for each container with
// the hook, and gpucdi restarts gpucdi-nvml when the driver or the GPUs change, so neither may link a server.
func TestSmallProgramsLinkNoServer(t *testing.T) {
	for _, program := range []string{"gpucdi-nvml", "gpucdi-hook"} {
		out, err := exec.Command("go", "list", "-deps", "./cmd/"+program).Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		for linked := range strings.FieldsSeq(string(out)) {
			for _, server := range []string{"net/http/", "google.golang.org/", "github.com/prometheus/"} {
				if strings.HasPrefix(linked+"/", server) {
					t.Errorf("%s links %s", program, linked)
				}
			}
		}
	}
}

// listedPackage has the fields of go list -json that the tests use.
type listedPackage struct {
	ImportPath string
	Imports    []string
}

// packages returns the packages of the product with their imports, without those of tests.
func packages(t *testing.T) []listedPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listedPackage
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var pkg listedPackage
		if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if pkg.ImportPath+"/" != module {
			all = append(all, pkg)
		}
	}
}
