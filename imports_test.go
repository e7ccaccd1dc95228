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

// allowed are the packages that each package may import. Data flows in one direction, from the driver to
// the kubelet; docs/architecture.md has the picture.
var allowed = map[string]struct {
	imports []string
	reason  string
}{
	"gpu":               {nil, "the model is shared by all other packages"},
	"gpu/health":        {[]string{"gpu"}, "a state machine without a clock and without I/O"},
	"gpu/driver":        {[]string{"gpu", "gpu/health", "internal/host"}, "it reports inventories, and does not depend on their use"},
	"gpu/nvml":          {[]string{"gpu", "gpu/driver", "gpu/health", "internal/host"}, "it runs in the driver worker, which depends on the driver only"},
	"cdi":               {[]string{"gpu", "internal/host"}, "a spec is a pure function of the inventory, the driver files and the features"},
	"allocator":         {[]string{"gpu"}, "plan and ledger are pure: neither I/O nor RPCs can get into Allocate"},
	"kubelet":           {[]string{"gpu", "allocator", "internal/host", "internal/unixgrpc"}, "it serves a plan and reads the kubelet's files; it must reach neither the driver nor the specs"},
	"runtime":           {[]string{"internal/host", "internal/unixgrpc"}, "it inspects the container runtime, and nothing else"},
	"status":            {[]string{"gpu"}, "a view: it has no state"},
	"labels":            {[]string{"gpu", "allocator"}, "a pure function; the agent applies them"},
	"cluster":           {nil, "it sends and watches, and decides nothing"},
	"metrics":           {[]string{"gpu", "status"}, "a view of the status, with counters"},
	"config":            {[]string{"allocator", "cdi", "kubelet"}, "a file of values that their packages own"},
	"doctor":            {[]string{"config", "gpu", "gpu/health", "gpu/driver", "cdi", "kubelet", "runtime", "status", "internal/host"}, "it checks every link without the agent"},
	"agent":             {[]string{"config", "gpu", "gpu/health", "gpu/driver", "cdi", "allocator", "kubelet", "runtime", "labels", "cluster", "status", "metrics", "internal/host"}, "the only wiring"},
	"cmd/gpucdi":        {[]string{"agent", "cdi", "cluster", "config", "doctor", "gpu", "gpu/driver", "labels", "status", "internal/host"}, "flags become a Config; no logic"},
	"cmd/gpucdi-nvml":   {[]string{"gpu/nvml", "internal/host"}, "the driver worker contains nothing but the driver"},
	"cmd/gpucdi-hook":   {[]string{"internal/ldcache"}, "it runs beside unknown images, with as little as possible"},
	"internal/host":     {nil, "internal packages are independent of each other"},
	"internal/unixgrpc": {nil, "internal packages are independent of each other"},
	"internal/ldcache":  {nil, "internal packages are independent of each other"},
}

// owners are the only packages that may import a module.
var owners = []struct {
	prefix   string
	packages []string
	reason   string
}{
	{"github.com/NVIDIA/go-nvml", []string{"gpu/nvml"}, "only the driver worker loads NVML"},
	{"google.golang.org/grpc", []string{"kubelet", "runtime", "internal/unixgrpc"}, "packages before the kubelet answer from memory"},
	{"k8s.io/", []string{"cluster", "kubelet", "runtime", "config"}, "the model must not depend on releases of Kubernetes"},
	{"github.com/prometheus", []string{"metrics"}, "only one package depends on how things are counted"},
	{"tags.cncf.io/container-device-interface", []string{"cdi", "kubelet", "cmd/gpucdi"}, "other packages use the names and annotations of package cdi"},
	{"github.com/gpucdi/gpucdi/test", nil, "the tests drive the product, never the reverse"},
}

func TestImports(t *testing.T) {
	seen := map[string]bool{}
	for _, pkg := range packages(t) {
		name := strings.TrimPrefix(pkg.ImportPath, module)
		rule, known := allowed[name]
		if !known {
			t.Errorf("%s is a new package: add a rule here and a row in docs/architecture.md", name)
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
	for name := range allowed {
		if !seen[name] {
			t.Errorf("%s has a rule but does not exist", name)
		}
	}
}

// A program pays at each start for all that it links. A runtime runs gpucdi-hook for each container, and
// gpucdi-nvml is isolated: neither links a server.
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

type listed struct {
	ImportPath string
	Imports    []string
}

// packages lists the product's packages and what each imports, less its tests.
func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var pkg listed
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
