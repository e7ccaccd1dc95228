package devicemanager

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpucdi/gpucdi/test/platform"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// newPlatform returns a node of a platform.
func newPlatform(t *testing.T, p platform.Platform) *node {
	t.Helper()
	n := newHost(t)
	var err error
	if n.driver, err = p.Install(n.root, filepath.Join(n.dir, "elsewhere")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(n.nfdDir, 0o755); err != nil {
		t.Fatal(err)
	}
	return n
}

// A node of each platform advertises its GPUs, injects their device nodes and libraries into containers, reports a
// missing device node, and advertises replicas.
func TestPlatforms(t *testing.T) {
	for _, p := range platform.All() {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			n := newPlatform(t, p)
			n.configure(t, "labels: {place: nfd}")
			k := startKubelet(t, n.kubeletDir, 1)
			n.startAgent(t)
			count := int64(len(p.IDs))
			k.awaitGPUs(t, count, count)
			n.awaitLabels(t, p.Labels...)
			n.requireNoLabels(t, p.Absent...)

			pod := newPod("first", 1)
			n.requireGPU(t, k, pod, p)
			for _, id := range p.IDs {
				if table := n.statusText(t); !strings.Contains(table, id) {
					t.Errorf("the status lacks %s:\n%s", id, table)
				}
			}

			missing := filepath.Join(n.root, p.Nodes[0])
			if err := os.Remove(missing); err != nil {
				t.Fatal(err)
			}
			k.awaitGPUs(t, count, 0)
			n.awaitStatus(t, func(nodeStatus) bool { return strings.Contains(n.statusText(t, "-o", "yaml"), "/"+p.Nodes[0]) })
			n.awaitMetric(t, fmt.Sprintf(`gpucdi_devices{health="unhealthy",reason="device_node",resource="nvidia.com/gpu"} %d`, count))
			if err := platform.MakeNode(missing); err != nil {
				t.Fatal(err)
			}
			k.awaitGPUs(t, count, count)

			k.removePod(pod)
			n.configure(t, "resources: [{name: nvidia.com/gpu, replicas: 4}]", "labels: {place: nfd}")
			k.awaitGPUs(t, 4*count, 4*count)
			n.awaitLabels(t, "nvidia.com/gpu.replicas=4\n", "nvidia.com/gpu.sharing-strategy=time-slicing\n")
			for i := range 2 {
				n.requireGPU(t, k, newPod(fmt.Sprint("shared-", i), 1), p)
			}
			n.killAgent(t)
			k.awaitGPUs(t, 4*count, 0)
			n.startAgent(t)
			k.awaitGPUs(t, 4*count, 4*count)
		})
	}
}

// requireGPU admits a pod, and checks that its container gets the device nodes and libcuda of the platform.
func (n *node) requireGPU(t *testing.T, k *kubelet, pod *v1.Pod, p platform.Platform) {
	t.Helper()
	if err := k.admit(pod); err != nil {
		t.Fatal(err)
	}
	request, err := k.start(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	nodes := n.injectedNodes(t, request)
	for _, name := range p.Nodes {
		if !slices.Contains(nodes, "/"+name) {
			t.Errorf("%s gets the nodes %v, want /%s", pod.Name, nodes, name)
		}
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(n.cdiDir), cdi.WithAutoRefresh(false))
	if err != nil {
		t.Fatal(err)
	}
	spec := &oci.Spec{}
	if _, err := cache.InjectDevices(spec, request.cdiDevices...); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/" + simdriver.LibraryDir, "/usr/lib64"} {
		if !slices.ContainsFunc(spec.Mounts, func(m oci.Mount) bool {
			return m.Destination == dir+"/libcuda.so.1" && m.Source == "/"+p.Libcuda
		}) {
			t.Errorf("%s has no libcuda.so.1 in %s: %v", pod.Name, dir, spec.Mounts)
		}
	}
	if len(request.cdiDevices) != 1 {
		t.Fatalf("%s gets %v, want one of %v", pod.Name, request.cdiDevices, p.IDs)
	}
	if _, id, _ := strings.Cut(request.cdiDevices[0], "="); !slices.Contains(p.IDs, id) {
		t.Errorf("%s gets %s, want one of %v", pod.Name, id, p.IDs)
	}
}

// requireNoLabels checks that no label has one of the prefixes.
func (n *node) requireNoLabels(t *testing.T, prefixes ...string) {
	t.Helper()
	text, err := os.ReadFile(n.featureFile())
	if err != nil {
		t.Fatal(err)
	}
	for _, prefix := range prefixes {
		if strings.Contains("\n"+string(text), "\n"+prefix) {
			t.Errorf("unexpected labels %s:\n%s", prefix, text)
		}
	}
}
