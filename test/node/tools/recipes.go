package tools

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// recipe returns the build of a tool.
func recipe(ctx context.Context, t Tool) (*build, error) {
	switch t {
	case Kube:
		return kube(ctx, t, "go.mod", "node/kube", "node/kubectl")
	case Kube134:
		return kube(ctx, t, "kubernetes-1.34.mod", "node/kube")
	case Containerd:
		return containerd(t, "github.com/containerd/containerd/v2", containerdVersion), nil
	case Containerd17:
		return containerd(t, "github.com/containerd/containerd", containerd17Version), nil
	case CRIO:
		return &build{
			tool: t, version: crioVersion, module: "github.com/cri-o/cri-o", packages: []string{"./cmd/crio"},
			flags:     []string{"-tags", "containers_image_openpgp exclude_graphdriver_btrfs seccomp", "-ldflags", "-s -w"},
			env:       []string{"CGO_ENABLED=1"},
			cPrograms: map[string]string{"pinns": "pinns/src"},
		}, nil
	case Runc:
		return &build{
			// As in its releases: a dynamically linked runc takes a third more CPU time to start.
			tool: t + "-static", version: runcVersion, module: "github.com/opencontainers/runc", packages: []string{"."},
			flags: []string{"-tags", "seccomp urfave_cli_no_docs netgo osusergo",
				"-ldflags", "-s -w -extldflags -static -X main.version=" + strings.TrimPrefix(runcVersion, "v")},
			env: []string{"CGO_ENABLED=1"},
		}, nil
	case Helm:
		return &build{
			tool: t, version: helmVersion, module: "helm.sh/helm/v4", packages: []string{"./cmd/helm"},
			flags: []string{"-ldflags", "-s -w"},
		}, nil
	case Nerdctl:
		const m = "github.com/containerd/nerdctl/v2"
		return pinned(ctx, t, nerdctlVersion, m+"/cmd/nerdctl", "-X "+m+"/pkg/version.Version="+nerdctlVersion)
	case Pause:
		return pause(ctx)
	case NVIDIAPlugin:
		return nvidia(t, NVIDIAPluginVersion, "k8s-device-plugin", "./cmd/nvidia-device-plugin", "./cmd/gpu-feature-discovery"), nil
	case NVIDIADRADriver:
		const m = "sigs.k8s.io/dra-driver-nvidia-gpu"
		return pinned(ctx, t, NVIDIADRADriverVersion, m+"/cmd/gpu-kubelet-plugin", "-X "+m+"/internal/info.version="+NVIDIADRADriverVersion)
	case NVIDIAToolkit:
		return nvidia(t, NVIDIAToolkitVersion, "nvidia-container-toolkit", "./cmd/nvidia-ctk", "./cmd/nvidia-cdi-hook"), nil
	case NVIDIARuntime:
		return nvidia(t, NVIDIAToolkitVersion, "nvidia-container-toolkit", "./cmd/nvidia-container-runtime"), nil
	}
	return nil, fmt.Errorf("unknown tool %q", t)
}

func containerd(t Tool, module, version string) *build {
	return &build{
		tool: t, version: version, module: module,
		packages: []string{"./cmd/containerd", "./cmd/containerd-shim-runc-v2", "./cmd/ctr"},
		flags: []string{"-tags", "no_btrfs no_zfs no_devmapper",
			"-ldflags", "-s -w -X " + module + "/version.Version=" + version},
	}
}

func nvidia(t Tool, version, module string, packages ...string) *build {
	return &build{
		tool: t, version: version, module: "github.com/NVIDIA/" + module, packages: packages,
		flags: []string{"-trimpath", "-ldflags", "-s -w"}, env: []string{"CGO_ENABLED=1"},
	}
}

// kube returns the build of a Kubernetes release from directories of this module. modFile pins its dependencies. The
// version covers Kubernetes, etcd and the main.go of each directory, but no other dependency, so that a module added for
// another test package does not cause a rebuild.
func kube(ctx context.Context, t Tool, modFile string, dirs ...string) (*build, error) {
	in, err := ModuleDir(ctx)
	if err != nil {
		return nil, err
	}
	modFile = filepath.Join(in, modFile)
	out, err := exec.CommandContext(ctx, "go", "list", "-modfile", modFile, "-m", "-f", "{{.Version}}",
		"k8s.io/kubernetes", "go.etcd.io/etcd/server/v3").Output()
	if err != nil {
		return nil, fmt.Errorf("finding the version of Kubernetes: %w", withStderr(err))
	}
	versions := strings.Fields(string(out))
	var packages, sources []string
	for _, dir := range dirs {
		packages, sources = append(packages, "./"+dir), append(sources, filepath.Join(in, dir, "main.go"))
	}
	source, err := digest(sources...)
	if err != nil {
		return nil, err
	}
	return &build{
		tool: t, version: strings.Join(append(versions, source), "-"), in: in, packages: packages,
		flags: []string{"-modfile", modFile, "-ldflags", "-s -w " + kubernetesVersion(versions[0])},
		links: []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"},
	}, nil
}

// kubernetesVersion returns linker flags that set the version of a Kubernetes program.
func kubernetesVersion(version string) string {
	const v = "k8s.io/component-base/version."
	number := strings.Split(strings.TrimPrefix(version, "v"), ".")
	return fmt.Sprintf("-X %[1]sgitVersion=%[2]s -X %[1]sgitMajor=%[3]s -X %[1]sgitMinor=%[4]s", v, version, number[0], number[1])
}

// pinned returns the build of a program that is pinned by a go.mod in the directory with the tool's name. The program's
// own go.mod cannot be used: its replace directives refer to directories of the repository that are not in the module.
func pinned(ctx context.Context, t Tool, version, pkg, linkerFlags string) (*build, error) {
	in, err := ModuleDir(ctx)
	if err != nil {
		return nil, err
	}
	in = filepath.Join(in, "node/tools", string(t))
	dependencies, err := digest(filepath.Join(in, "go.mod"), filepath.Join(in, "go.sum"))
	if err != nil {
		return nil, err
	}
	return &build{
		tool: t, version: version + "-" + dependencies, in: in, packages: []string{pkg},
		flags: []string{"-trimpath", "-ldflags", "-s -w " + linkerFlags},
	}, nil
}

// pause returns the build of Pause. It is linked statically, since its image contains nothing else.
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
