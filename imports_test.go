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

// rooms says which rooms each room may import. Data flows one way, from the
// driver to the kubelet; docs/architecture.md shows it.
var rooms = map[string]struct {
	may []string
	why string
}{
	"gpu":               {nil, "the model is what all the others share, so it knows none of them"},
	"gpu/health":        {[]string{"gpu"}, "a state machine that is fed: no clock, no driver"},
	"gpu/driver":        {[]string{"gpu", "gpu/health", "internal/host"}, "it yields inventories; what becomes of them is not its business"},
	"gpu/nvml":          {[]string{"gpu", "gpu/driver", "gpu/health", "internal/host"}, "it runs in a process of its own, which knows the driver and nothing else"},
	"cdi":               {[]string{"gpu", "internal/config", "internal/host"}, "a spec is a pure function of an inventory, the driver's files and what is asked for"},
	"allocator":         {[]string{"gpu", "internal/config"}, "the plan is pure: no I/O and no RPC can slip into Allocate"},
	"kubelet":           {[]string{"gpu", "allocator", "internal/config", "internal/host", "internal/unixgrpc"}, "it serves a plan and reads the kubelet's own files; it must not be able to reach the driver or the specs"},
	"runtime":           {[]string{"internal/host", "internal/unixgrpc"}, "it only asks the runtime, and is asked by the agent"},
	"status":            {[]string{"gpu"}, "it says what it is told, and could not find out by itself"},
	"labels":            {[]string{"gpu", "allocator", "internal/config"}, "a pure function: who puts them where is the agent's business"},
	"apiserver":         {nil, "it tells the cluster what it is told"},
	"metrics":           {[]string{"gpu", "status"}, "it shows what the status says, and counts what it is told"},
	"doctor":            {[]string{"gpu", "gpu/health", "gpu/driver", "cdi", "kubelet", "runtime", "status", "internal/config", "internal/host"}, "it looks at every link by itself, and must not need the agent for it"},
	"agent":             {[]string{"gpu", "gpu/health", "gpu/driver", "cdi", "allocator", "kubelet", "runtime", "labels", "apiserver", "status", "metrics", "internal/config", "internal/host"}, "the only place where the rooms meet"},
	"cmd/gpucdi":        {[]string{"agent", "allocator", "apiserver", "cdi", "doctor", "gpu", "gpu/driver", "labels", "status", "internal/config", "internal/host"}, "flags become a Config; no logic"},
	"cmd/gpucdi-nvml":   {[]string{"gpu/nvml", "internal/host"}, "it starts in a moment: nothing but the driver"},
	"cmd/gpucdi-hook":   {[]string{"internal/ldcache"}, "it runs on behalf of the runtime, beside an image that nobody knows: as little as can be"},
	"internal/config":   {nil, "small things that every room may use know nothing of each other"},
	"internal/host":     {nil, "small things that every room may use know nothing of each other"},
	"internal/unixgrpc": {nil, "small things that every room may use know nothing of each other"},
	"internal/ldcache":  {nil, "bytes in, bytes out"},
}

// owners says which rooms alone may import a module.
var owners = []struct {
	prefix string
	rooms  []string
	why    string
}{
	{"github.com/NVIDIA/go-nvml", []string{"gpu/nvml"}, "one goroutine talks to the driver"},
	{"google.golang.org/grpc", []string{"kubelet", "runtime", "internal/unixgrpc"}, "the rooms left of the kubelet answer from memory"},
	{"k8s.io/", []string{"apiserver", "kubelet", "runtime", "internal/config"}, "the model must not depend on Kubernetes' releases"},
	{"github.com/prometheus", []string{"metrics"}, "the rooms tell what happens; only one knows how it is counted"},
	{"tags.cncf.io/container-device-interface", []string{"cdi", "kubelet", "cmd/gpucdi"}, "CDI is the cdi room's; the others use its names and annotations"},
	{"github.com/gpucdi/gpucdi/test", nil, "the tests drive the product, never the other way"},
}

func TestRoomsImportOnlyWhatTheyMay(t *testing.T) {
	seen := map[string]bool{}
	for _, pkg := range packages(t) {
		room := strings.TrimPrefix(pkg.ImportPath, module)
		rule, known := rooms[room]
		if !known {
			t.Errorf("%s is a new room: give it a rule here and a place in docs/architecture.md", room)
			continue
		}
		seen[room] = true
		for _, imported := range pkg.Imports {
			if target, ours := strings.CutPrefix(imported, module); ours && !slices.Contains(rule.may, target) {
				t.Errorf("%s imports %s: %s", room, target, rule.why)
			}
			for _, owner := range owners {
				if strings.HasPrefix(imported, owner.prefix) && !slices.Contains(owner.rooms, room) {
					t.Errorf("%s imports %s: %s", room, imported, owner.why)
				}
			}
		}
	}
	for room := range rooms {
		if !seen[room] {
			t.Errorf("%s has a rule but does not exist", room)
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
