package runtime_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/internal/host"
	"github.com/gpucdi/gpucdi/runtime"
)

func TestDetectContainerd(t *testing.T) {
	for _, tc := range []struct {
		name, version, config string
		problem               string // substring; empty for no problem
	}{
		{"2.4", "v2.4.2", `{"cdiSpecDirs":["/etc/cdi","/var/run/cdi"]}`, ""},
		{"2.0, CDI enabled", "2.0.5", `{"enableCDI":true,"cdiSpecDirs":["/var/run/cdi"]}`, ""},
		{"2.1, CDI disabled", "v2.1.0", `{"enableCDI":false}`, `[plugins."io.containerd.cri.v1.runtime"]`},
		{"1.7, default", "1.7.27", `{"enableCDI":false,"cdiSpecDirs":["/etc/cdi","/var/run/cdi"]}`, `enable_cdi = true under [plugins."io.containerd.grpc.v1.cri"]`},
		{"1.7, CDI enabled", "1.7.27", `{"enableCDI":true,"cdiSpecDirs":["/etc/cdi","/run/cdi"]}`, ""},
		{"1.6", "1.6.20~ds1", `{}`, "upgrade to containerd"},
		{"other spec directory", "2.4.2", `{"cdiSpecDirs":["/etc/cdi"]}`, "--cdi-dir"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node := t.TempDir()
			serve(t, node, "/run/containerd/containerd.sock", fakeCRI{name: "containerd", version: tc.version, config: tc.config})
			info, err := runtime.Detect(t.Context(), host.NewRoot(node), "/var/lib/kubelet")
			if err != nil {
				t.Fatal(err)
			}
			if info.Name != "containerd" || info.Version != tc.version || info.Socket != "/run/containerd/containerd.sock" {
				t.Errorf("got %+v", info)
			}
			switch problem := info.Problem("/var/run/cdi"); {
			case tc.problem == "" && problem != "":
				t.Errorf("problem: %s", problem)
			case !strings.Contains(problem, tc.problem) || strings.Contains(problem, "\n"):
				t.Errorf("problem %q, want one line with %q", problem, tc.problem)
			}
		})
	}
}

func TestDetectPrefersOtherRuntimesToDocker(t *testing.T) {
	for _, socket := range []string{"/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock", "/run/k0s/containerd.sock"} {
		node := t.TempDir()
		serve(t, node, "/run/containerd/containerd.sock", fakeCRI{name: "containerd", version: "v1.7.35", config: `{}`})
		serve(t, node, socket, fakeCRI{name: "containerd", version: "v2.4.2", config: `{}`})
		if info, err := runtime.Detect(t.Context(), host.NewRoot(node), "/var/lib/kubelet"); err != nil || info.Socket != socket {
			t.Errorf("next to Docker's: got %+v, %v, want %s", info, err, socket)
		}
	}
}

func TestProblemNamesConfigOfDistribution(t *testing.T) {
	for socket, remedy := range map[string]string{
		"/run/k3s/containerd/containerd.sock":           "in /var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl (on RKE2: rke2 instead of k3s) and restart k3s or rke2",
		"/run/k0s/containerd.sock":                      "in a file in /etc/k0s/containerd.d and restart k0s",
		"/var/snap/microk8s/common/run/containerd.sock": "in /var/snap/microk8s/current/args/containerd-template.toml and restart MicroK8s",
	} {
		node := t.TempDir()
		serve(t, node, socket, fakeCRI{name: "containerd", version: "v1.7.35", config: `{"enableCDI":false}`})
		info, err := runtime.Detect(t.Context(), host.NewRoot(node), "/var/lib/kubelet")
		if err != nil || info.Socket != socket {
			t.Errorf("%s: got %+v, %v", socket, info, err)
		}
		if problem := info.Problem("/var/run/cdi"); !strings.HasSuffix(problem, remedy) {
			t.Errorf("%s: problem %q, want suffix %q", socket, problem, remedy)
		}
	}
}

func TestDetectCRIO(t *testing.T) {
	node := t.TempDir()
	serve(t, node, "/run/crio/crio.sock", fakeCRI{
		name: "cri-o", version: "1.34.0",
		config: "[crio]\n  [crio.runtime]\n    cdi_spec_dirs = [\"/etc/cdi\", \"/opt/cdi\"]\n",
	})
	info, err := runtime.Detect(t.Context(), host.NewRoot(node), "/var/lib/kubelet")
	if err != nil {
		t.Fatal(err)
	}
	if !info.CDI || info.Version != "1.34.0" {
		t.Errorf("got %+v", info)
	}
	if p := info.Problem("/opt/cdi"); p != "" {
		t.Errorf("problem: %s", p)
	}
	if p := info.Problem("/var/run/cdi"); !strings.Contains(p, "/opt/cdi") {
		t.Errorf("problem %q does not contain the directories", p)
	}
}

func TestDetectPrefersKubeletConfig(t *testing.T) {
	node := t.TempDir()
	serve(t, node, "/run/containerd/containerd.sock", fakeCRI{name: "containerd", version: "1.7.0", config: `{}`})
	serve(t, node, "/run/custom.sock", fakeCRI{name: "containerd", version: "2.4.2", config: `{}`})
	kubelet := filepath.Join(node, "var/lib/kubelet/config.yaml")
	write(t, kubelet, "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix:///run/custom.sock\n")
	info, err := runtime.Detect(t.Context(), host.NewRoot(node), "/var/lib/kubelet")
	if err != nil || info.Socket != "/run/custom.sock" {
		t.Errorf("got %+v, %v", info, err)
	}
}

func TestDetectErrorListsSockets(t *testing.T) {
	node := t.TempDir()
	write(t, filepath.Join(node, "run/crio/crio.sock"), "") // stale, without a listener
	_, err := runtime.Detect(t.Context(), host.NewRoot(node), "/var/lib/kubelet")
	for _, socket := range []string{"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock"} {
		if err == nil || !strings.Contains(err.Error(), socket) {
			t.Errorf("error does not contain %s: %v", socket, err)
		}
	}
}

// A runtime that hangs must not be skipped like an absent one: Docker's containerd has no containers of pods.
func TestDetectDoesNotSkipHungRuntime(t *testing.T) {
	const k3s, docker = "/run/k3s/containerd/containerd.sock", "/run/containerd/containerd.sock"
	node := t.TempDir()
	serve(t, node, k3s, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	serve(t, node, docker, fakeCRI{name: "containerd", version: "v2.4.2", config: `{}`})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	info, err := runtime.Detect(ctx, host.NewRoot(node), "/var/lib/kubelet")
	if err == nil || !strings.Contains(err.Error(), k3s+": getting the runtime version") || strings.Contains(err.Error(), docker) {
		t.Errorf("got %+v, %v", info, err)
	}
}

// fakeCRI is a runtime with this name, version and configuration.
type fakeCRI struct {
	cri.UnimplementedRuntimeServiceServer
	name, version, config string

	containers []*cri.Container
	info       map[string]string // verbose status by container ID; other containers are not found
	sandboxes  []*cri.PodSandbox
}

func (f fakeCRI) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeName: f.name, RuntimeVersion: f.version}, nil
}

func (f fakeCRI) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	return &cri.StatusResponse{Info: map[string]string{"config": f.config}}, nil
}

// ServeHTTP serves gRPC and the HTTP API of CRI-O on one socket, as CRI-O does.
func (f fakeCRI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/config" {
		_, _ = w.Write([]byte(f.config))
		return
	}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, f)
	server.ServeHTTP(w, r)
}

func serve(t *testing.T, node, socket string, f http.Handler) {
	t.Helper()
	path := filepath.Join(node, socket)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: f, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }()
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
