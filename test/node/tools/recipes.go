package tools

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// recipe says how a tool is built.
func recipe(ctx context.Context, t Tool) (*build, error) {
	switch t {
	case Kube:
		return kube(ctx)
	case Containerd:
		return containerd(t, "github.com/containerd/containerd/v2", containerdVersion), nil
	case Containerd17:
		return containerd(t, "github.com/containerd/containerd", containerd17Version), nil
	case CRIO:
		return &build{
			tool: t, version: crioVersion, module: "github.com/cri-o/cri-o", packages: []string{"./cmd/crio"},
			flags: []string{"-tags", "containers_image_openpgp exclude_graphdriver_btrfs seccomp", "-ldflags", "-s -w"},
			env:   []string{"CGO_ENABLED=1"},
			c:     map[string]string{"pinns": "pinns/src"},
		}, nil
	case Runc:
		return &build{
			tool: t, version: runcVersion, module: "github.com/opencontainers/runc", packages: []string{"."},
			flags: []string{"-tags", "seccomp",
				"-ldflags", "-s -w -X main.version=" + strings.TrimPrefix(runcVersion, "v")},
			env: []string{"CGO_ENABLED=1"},
		}, nil
	case Helm:
		return &build{
			tool: t, version: helmVersion, module: "helm.sh/helm/v4", packages: []string{"./cmd/helm"},
			flags: []string{"-ldflags", "-s -w"},
		}, nil
	case Nerdctl:
		return nerdctl(ctx)
	case Pause:
		return pause(ctx)
	}
	return nil, fmt.Errorf("no tool is called %q", t)
}

func containerd(t Tool, module, version string) *build {
	return &build{
		tool: t, version: version, module: module,
		packages: []string{"./cmd/containerd", "./cmd/containerd-shim-runc-v2", "./cmd/ctr"},
		flags: []string{"-tags", "no_btrfs no_zfs no_devmapper",
			"-ldflags", "-s -w -X " + module + "/version.Version=" + version},
	}
}

// kube is pinned by the go.mod of this module. Its key holds what was asked for, not every
// dependency: a module that another package of the tests adds is no reason to link again.
func kube(ctx context.Context) (*build, error) {
	in, err := ModuleDir(ctx)
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}",
		"k8s.io/kubernetes", "go.etcd.io/etcd/server/v3").Output()
	if err != nil {
		return nil, fmt.Errorf("finding the version of Kubernetes: %w", explain(err))
	}
	versions := strings.Fields(string(out))
	source, err := digest(filepath.Join(in, "node/kube/main.go"))
	if err != nil {
		return nil, err
	}
	const v = "k8s.io/component-base/version."
	number := strings.Split(strings.TrimPrefix(versions[0], "v"), ".")
	return &build{
		tool: Kube, version: strings.Join(append(versions, source), "-"), in: in, packages: []string{"./node/kube"},
		flags: []string{"-ldflags", fmt.Sprintf("-s -w -X %[1]sgitVersion=%[2]s -X %[1]sgitMajor=%[3]s -X %[1]sgitMinor=%[4]s",
			v, versions[0], number[0], number[1])},
		links: []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"},
	}, nil
}

// nerdctl names a directory of its own repository in a replace, which its module lacks; a go.mod
// of ours pins it instead.
func nerdctl(ctx context.Context) (*build, error) {
	in, err := ModuleDir(ctx)
	if err != nil {
		return nil, err
	}
	const m = "github.com/containerd/nerdctl/v2"
	return &build{
		tool: Nerdctl, version: nerdctlVersion, in: filepath.Join(in, "node/tools/nerdctl"), packages: []string{m + "/cmd/nerdctl"},
		flags: []string{"-ldflags", "-s -w -X " + m + "/pkg/version.Version=" + nerdctlVersion},
	}, nil
}

// pause is static: its image holds nothing else.
func pause(ctx context.Context) (*build, error) {
	in, err := ModuleDir(ctx)
	if err != nil {
		return nil, err
	}
	source, err := digest(filepath.Join(in, "node/pause/main.go"))
	if err != nil {
		return nil, err
	}
	return &build{
		tool: Pause, version: source, in: in, packages: []string{"./node/pause"},
		flags: []string{"-ldflags", "-s -w"}, env: []string{"CGO_ENABLED=0"},
	}, nil
}
