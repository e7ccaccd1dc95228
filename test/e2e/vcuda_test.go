package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	core "k8s.io/api/core/v1"

	"github.com/gpucdi/gpucdi/test/node/images"
)

const vcudaDocument = "docs/vcuda.md"

// TestVCUDA allocates parts of GPUs to pods that request vcuda-core and vcuda-memory.
func TestVCUDA(t *testing.T) {
	inTurn(t, 13)
	runClaimCases(t, []claimCase{{"pods request vcuda-core and vcuda-memory", vcudaPods}})
}

// vcudaPods runs pods that request vcuda-core and vcuda-memory on four GPUs, as docs/vcuda.md describes.
func vcudaPods(t *testing.T, c *cluster) {
	version := c.driver.State().Version
	c.emulateCgroup2(t)
	// The tests change the ConfigMap.
	enable := strings.Replace(blocksOf(t, vcudaDocument, "Enable it", "sh")[0], "--wait", "--wait --force-conflicts", 1)
	disable := strings.Replace(blocksOf(t, vcudaDocument, "Disable it", "sh")[0], "--wait", "--wait --force-conflicts", 1)
	defer func() {
		if err := c.driver.Upgrade(version); err != nil {
			t.Error(err)
		}
		c.sh(t, disable)
		if left := c.kubectl(t, "get", "resourceclaimtemplates", "--all-namespaces", "--output=name"); strings.Contains(left, "/vcuda-") {
			t.Errorf("templates are left: %s", left)
		}
		c.configure(t, "allocation: {mode: dra}\n")
	}()
	c.sh(t, enable)
	c.awaitPolicies(t, "nvidia.com", "vcuda-c30-m30-l50")
	config := blocksOf(t, vcudaDocument, "Enable it", "yaml")[0]
	four := strings.Replace(config, "resources:\n", "resources:\n  - {select: {index: [4, 5, 6, 7]}, exclude: true}\n", 1)
	t.Run("minimum level", func(t *testing.T) {
		vcudaLevel(t, c, strings.Replace(four, "share: memory", "share: memory, level: any", 1))
	})
	c.configure(t, four)
	c.awaitSlices(t, 4)
	t.Run("manifests of the document", func(t *testing.T) { documentedVCUDA(t, c) })
	spreading := strings.Replace(four, "placement: pack", "placement: spread", 1)
	c.configure(t, spreading)
	t.Run("requests", func(t *testing.T) { vcudaRequests(t, c) })
	t.Run("spread", func(t *testing.T) { vcudaSpread(t, c) })
	for range vcudaRounds(t) {
		t.Run("simultaneous pods of several sizes", func(t *testing.T) { vcudaSimultaneous(t, c) })
	}
	t.Run("no controller", func(t *testing.T) { withoutController(t, c) })
	t.Run("manifests of gpu-manager", func(t *testing.T) { gpuManagerManifests(t, c, "nvidia.com", 50, 2048) })
	t.Run("manifests of Tencent's gpu-manager", func(t *testing.T) { tencentManifests(t, c, spreading) })
	t.Run("compute ceilings", func(t *testing.T) { vcudaCeilings(t, c, spreading) })
	t.Run("random pods on two models", func(t *testing.T) { vcudaRandom(t, c, config) })
	t.Run("no policies", func(t *testing.T) { withoutPolicies(t, c) })
}

// vcudaLevel creates a pod that demands memory limits by the driver. It is pending until the node has a driver that can
// limit memory. config shares GPUs with any driver.
func vcudaLevel(t *testing.T, c *cluster, config string) {
	c.configure(t, config)
	c.awaitSlices(t, 4)
	if err := c.Apply(t.Context(), []byte(vcudaPod("name: demanding", "gpucdi.dev/memory-isolation: driver", [2]string{"main", vcuda(30, 2048)}))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.remove(t, "demanding") })
	c.applyVCUDA(t, "undemanding", 30, 2048)
	c.awaitPhase(t, "undemanding", "Running")
	c.awaitOutput(t, "cannot allocate all claims", func(t *testing.T) string { return c.kubectl(t, "describe", "pod", "demanding") })
	c.remove(t, "undemanding") // its claim was prepared without a limit
	if err := c.driver.Upgrade("615.71.09"); err != nil {
		t.Fatal(err)
	}
	c.awaitPhase(t, "demanding", "Running")
	c.checkLimit(t, "demanding", 2)
}

// gpuManagerManifests runs the pods of gpu-manager's README with another image. The first one requests a part of a GPU.
func gpuManagerManifests(t *testing.T, c *cluster, domain string, cores, memory int) {
	manifests := gpuManagerPods(domain, cores, memory)
	for i, manifest := range manifests {
		if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
			t.Fatal(err)
		}
		c.awaitPhase(t, "vcuda", "Succeeded")
		if out := c.kubectl(t, "logs", "vcuda"); strings.Count(out, "H100") != i+1 {
			t.Errorf("pod %d prints\n%s\nwant %d GPUs", i+1, out, i+1)
		}
		c.remove(t, "vcuda")
	}
}

// gpuManagerPods returns the pods of gpu-manager's README: one with a part of a GPU, and one with two GPUs.
func gpuManagerPods(domain string, cores, memory int) []string {
	const manifest = `
apiVersion: v1
kind: Pod
metadata:
  name: vcuda
  annotations: {%s}
spec:
  restartPolicy: Never
  hostNetwork: true
  containers:
  - image: ` + images.DebianName + `
    name: nvidia
    command: ['/usr/local/nvidia/bin/nvidia-smi']
    resources:
      requests: {%[2]s}
      limits: {%[2]s}
`
	in := func(limits string) string { return strings.ReplaceAll(limits, "nvidia.com", domain) }
	return []string{
		fmt.Sprintf(manifest, domain+`/vcuda-core-limit: "50"`, in(vcuda(cores, memory))),
		fmt.Sprintf(manifest, "", in(vcuda(200, 60))),
	}
}

// tencentManifests runs the pods with the domain and the unit of memory of Tencent's gpu-manager. config shares GPUs.
func tencentManifests(t *testing.T, c *cluster, config string) {
	set := func(domain, unit, template string) {
		c.sh(t, "helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --force-conflicts --wait --set vcuda.domain="+domain+",vcuda.memoryUnit="+unit)
		c.configure(t, config) // Helm has replaced it by the config in its values
		c.awaitPolicies(t, domain, template)
	}
	set("tencent.com", "256Mi", "vcuda-c30-m7680-l50")
	defer set("nvidia.com", "1Mi", "vcuda-c30-m30-l50")
	gpuManagerManifests(t, c, "tencent.com", 30, 30)
}

// vcudaCeilings runs a pod with a core limit, and one without, on GPUs that config shares, with compute ceilings.
func vcudaCeilings(t *testing.T, c *cluster, config string) {
	set := func(command string) {
		c.sh(t, strings.Replace(command, "--wait", "--wait --force-conflicts", 1))
		c.awaitOneAgent(t)
	}
	set(blocksOf(t, sharingDocument, ceilingSection, "sh")[0])
	defer set("helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --set mpsDaemon.enabled=false --wait")
	c.configure(t, strings.Replace(config, "placement: spread", "placement: spread, compute: ceiling", 1))
	c.awaitOutput(t, "ceiling ceiling ceiling ceiling", func(t *testing.T) string {
		return c.kubectl(t, "get", "resourceslices", "-o", `jsonpath={.items[*].spec.devices[*].attributes.gpucdi\.dev/computeIsolation.string}`)
	})
	asUser := strings.NewReplacer("hostNetwork: true", "hostNetwork: true, securityContext: {runAsNonRoot: true, runAsUser: 1000}",
		"command:", "securityContext: {allowPrivilegeEscalation: false}, command:")
	for _, tc := range []struct{ name, annotation, multiprocessors string }{
		{"ceiled", `nvidia.com/vcuda-core-limit: "50"`, "66"},
		{"ceiled-by-default", "", "38"}, // 30% are 39.6, and they are assigned in pairs
	} {
		manifest := asUser.Replace(vcudaPod("name: "+tc.name, tc.annotation, [2]string{"main", vcuda(30, 2048)}))
		if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
			t.Fatal(err)
		}
		defer c.remove(t, tc.name)
		c.awaitPhase(t, tc.name, "Running")
		c.seesMultiprocessors(t, tc.name, "", "0 "+tc.multiprocessors)
		c.checkLimit(t, tc.name, 2)
	}
}

func documentedVCUDA(t *testing.T, c *cluster) {
	manifests := blocksOf(t, vcudaDocument, "Request a part of a GPU", "yaml")
	for i := range manifests { // sleep ignores SIGTERM
		manifests[i] = strings.Replace(manifests[i], "spec:\n", "spec:\n  terminationGracePeriodSeconds: 0\n", 1)
	}
	half, neighbor := manifests[0], strings.Replace(manifests[0], "name: half", "name: neighbor", 1)
	for name, manifest := range map[string]string{"half": half, "neighbor": neighbor, "two": manifests[1]} {
		if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.remove(t, name) })
	}
	for _, name := range []string{"half", "neighbor", "two"} {
		c.awaitPhase(t, name, "Running")
	}
	if uuids := c.gpusOf(t, "two"); len(uuids) != 2 {
		t.Errorf("pod two sees %v", uuids)
	}
	if first, second := c.onlyGPUOf(t, "half"), c.onlyGPUOf(t, "neighbor"); first != second {
		t.Errorf("pods half and neighbor have GPUs %s and %s, want the same GPU", first, second)
	}
	c.hasOnlyDriver(t, "half")
	if got := c.tryAllocate(t, "neighbor", 2000, 40); got != cudaSuccess {
		t.Errorf("CUDA returns %s for the neighbor", got)
	}
	for more, want := range []string{cudaSuccess, cudaOutOfMemory} {
		if got := c.tryAllocate(t, "half", 2000, 48+more); got != want {
			t.Errorf("allocating %d MiB: CUDA returns %s, want %s", 2048+more, got, want)
		}
		c.endAllocations(t, "half")
	}
	if got := c.tryAllocate(t, "neighbor", 4, 4); got != cudaSuccess {
		t.Errorf("CUDA returns %s for the neighbor, after an allocation of pod half failed", got)
	}
}

// vcudaPod returns the manifest of a pod. name is "name: ..." or "generateName: ...". Each container has a name and
// limits. A container whose name starts with "init" is an init container, with "sidecar" a sidecar.
func vcudaPod(name, annotations string, containers ...[2]string) string {
	var initial, main []string
	for _, c := range containers {
		command, restart, list := "[sleep, infinity]", "", &main
		if strings.HasPrefix(c[0], "init") {
			command, list = "[nvidia-smi, -L]", &initial
		}
		if strings.HasPrefix(c[0], "sidecar") {
			restart, list = "restartPolicy: Always, ", &initial
		}
		*list = append(*list, fmt.Sprintf("{name: %s, image: 'docker.io/library/debian:bookworm-slim', %scommand: %s, resources: {limits: {%s}}}", c[0], restart, command, c[1]))
	}
	return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {%s, annotations: {%s}}, spec: {terminationGracePeriodSeconds: 0, hostNetwork: true, automountServiceAccountToken: false, initContainers: [%s], containers: [%s]}}",
		name, annotations, strings.Join(initial, ", "), strings.Join(main, ", "))
}

// vcuda returns the limits of a container.
func vcuda(cores, memory int) string {
	return fmt.Sprintf("nvidia.com/vcuda-core: %d, nvidia.com/vcuda-memory: %d", cores, memory)
}

// vcudaRequests checks which requests the API server converts to claims, and which it refuses.
func vcudaRequests(t *testing.T, c *cluster) {
	main := func(limits string) [2]string { return [2]string{"main", limits} }
	for _, tc := range []struct {
		name, annotations string
		containers        [][2]string
		want              string // the claims with their templates, and the containers with their claims; or a part of the error
	}{
		{"part", "", [][2]string{main(vcuda(30, 4000))}, "vcuda-0=vcuda-c30-m4000; main:vcuda-0"},
		{"canonical quantity", `nvidia.com/vcuda-core-limit: "50"`, [][2]string{main("nvidia.com/vcuda-core: 30, nvidia.com/vcuda-memory: 4k")},
			"vcuda-0=vcuda-c30-m4000-l50; main:vcuda-0"},
		{"compute ceiling", "gpucdi.dev/compute-isolation: ceiling", [][2]string{main(vcuda(30, 4000))}, "vcuda-0=vcuda-c30-m4000-compute-ceiling; main:vcuda-0"},
		{"whole GPUs", `nvidia.com/vcuda-core-limit: "50"`, [][2]string{main(vcuda(300, 4000))}, "vcuda-0=vcuda-c300; main:vcuda-0"},
		{"isolation", "gpucdi.dev/memory-isolation: driver, gpucdi.dev/compute-isolation: timeslice", [][2]string{main(vcuda(30, 4000))},
			"vcuda-0=vcuda-c30-m4000-memory-driver-compute-timeslice; main:vcuda-0"},
		{"several containers", "", [][2]string{{"init", vcuda(30, 4000)}, {"init-other", vcuda(10, 500)}, {"sidecar", vcuda(30, 4000)}, {"none", "cpu: 1"}, main(vcuda(30, 4000) + ", cpu: 1")},
			"vcuda-1=vcuda-c30-m4000 vcuda-3=vcuda-c10-m500 vcuda-4=vcuda-c30-m4000; init:vcuda-1 init-other:vcuda-3 sidecar:vcuda-4 none main:vcuda-1"},
		{"no vcuda", "", [][2]string{main("nvidia.com/gpu: 1, nvidia.com/vcuda-core: 0")}, "; main"},
		{"150", "", [][2]string{main(vcuda(150, 4000))}, "container main: nvidia.com/vcuda-core is 150; want 1 to 99 for a part of a GPU, or 100, 200 up to 3200"},
		{"3300", "", [][2]string{main(vcuda(3300, 0))}, "nvidia.com/vcuda-core is 3300"},
		{"no memory", "", [][2]string{{"init", vcuda(10, 100)}, main("nvidia.com/vcuda-core: 99")}, "container main: nvidia.com/vcuda-core below 100 requires nvidia.com/vcuda-memory, in units of 1Mi"},
		{"no cores", "", [][2]string{main("nvidia.com/vcuda-memory: 99")}, "nvidia.com/vcuda-memory requires nvidia.com/vcuda-core"},
		{"much memory", "", [][2]string{main("nvidia.com/vcuda-core: 1, nvidia.com/vcuda-memory: 1e30")}, "and nvidia.com/vcuda-memory at most 999999"},
		{"hardware", "gpucdi.dev/memory-isolation: hardware", [][2]string{main(vcuda(30, 4000))}, "container main: a part of a GPU cannot have hardware isolation"},
		{"low limit", `nvidia.com/vcuda-core-limit: "20"`, [][2]string{main(vcuda(30, 4000))}, `is "20"; want a number from 30, the value of nvidia.com/vcuda-core, to 100`},
		{"limit in words", `nvidia.com/vcuda-core-limit: half`, [][2]string{main(vcuda(30, 4000))}, `is "half"; want a number`},
		{"unknown levels", "gpucdi.dev/memory-isolation: strong, gpucdi.dev/compute-isolation: x", [][2]string{main(vcuda(30, 4000))}, `want none, driver or hardware; the annotation gpucdi.dev/compute-isolation is "x"; want timeslice, ceiling or hardware`},
	} {
		got, err := c.converted(t, vcudaPod("generateName: x-", tc.annotations, tc.containers...))
		matches := got == tc.want
		if err != nil {
			got = err.Error()
			matches = strings.Contains(got, tc.want)
		}
		if !matches {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
	// Labels, as pods of a Deployment have them, and another claim.
	more := strings.NewReplacer("annotations: {", "labels: {app: a}, annotations: {", "spec: {", "spec: {resourceClaims: [{name: own, resourceClaimTemplateName: own}], ",
		"resources: {", "resources: {claims: [{name: own}], ").Replace(vcudaPod("generateName: x-", "", [2]string{"init", vcuda(30, 4000)}, main(vcuda(30, 4000))))
	const want = "own=own vcuda-0=vcuda-c30-m4000; init:own:vcuda-0 main:own:vcuda-0"
	if got, err := c.converted(t, more); err != nil || got != want {
		t.Errorf("with another claim: %s, error %v, want %s", got, err, want)
	}
	if got, err := c.converted(t, strings.ReplaceAll(more, "name: own", "name: vcuda-0")); err == nil || !strings.Contains(err.Error(), `Duplicate value: "vcuda-0"`) {
		t.Errorf("with another claim of the same name: %s, error %v, want an error that names the claim", got, err)
	}
}

// converted returns the claims that a pod would have, with their templates, and its containers with their claims.
func (c *cluster) converted(t *testing.T, manifest string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pod.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := c.Kubectl(t.Context(), "create", "--dry-run=server", "-f", file, "-o",
		`go-template={{range .spec.resourceClaims}}{{.name}}={{.resourceClaimTemplateName}} {{end}};{{range .spec.initContainers}} {{.name}}{{range .resources.claims}}:{{.name}}{{end}}{{end}}{{range .spec.containers}} {{.name}}{{range .resources.claims}}:{{.name}}{{end}}{{end}}`)
	return strings.ReplaceAll(strings.Join(strings.Fields(string(out)), " "), " ;", ";"), err
}

// vcudaSpread starts four pods with half a GPU each. They get different GPUs. Larger pods stay pending, with the
// scheduler's reason, until a GPU is free.
func vcudaSpread(t *testing.T, c *cluster) {
	gpus := map[string]bool{}
	for i := range 4 {
		await(t, "an unused GPU to be first in the slice, which is updated with a delay after an allocation", func() (string, bool) {
			first := c.kubectl(t, "get", "resourceslices", "-o", "jsonpath={.items[0].spec.devices[0].name}")
			return first, !gpus["GPU-"+strings.TrimPrefix(first, "gpu-")]
		})
		name := fmt.Sprint("half-", i)
		c.applyVCUDA(t, name, 50, 1000)
		c.awaitPhase(t, name, "Running")
		gpus[c.onlyGPUOf(t, name)] = true
	}
	if len(gpus) != 4 {
		t.Fatalf("four pods have the GPUs %v", gpus)
	}
	c.applyVCUDA(t, "large", 60, 1000)
	c.awaitOutput(t, "cannot allocate all claims", func(t *testing.T) string { return c.kubectl(t, "describe", "pod", "large") })
	c.remove(t, "half-0")
	c.awaitPhase(t, "large", "Running")
	c.applyVCUDA(t, "whole", 100, 0)
	c.awaitOutput(t, "cannot allocate all claims", func(t *testing.T) string { return c.kubectl(t, "describe", "pod", "whole") })
	c.remove(t, "half-1")
	c.awaitPhase(t, "whole", "Running")
	if events := c.kubectl(t, "get", "events", "-o", "jsonpath={.items[*].reason}"); strings.Contains(events, "UnexpectedAdmissionError") {
		t.Error("a pod was rejected after it was bound")
	}
}

// applyVCUDA creates a pod, and removes it when the test ends.
func (c *cluster) applyVCUDA(t *testing.T, name string, cores, memory int) {
	t.Helper()
	if err := c.Apply(t.Context(), []byte(vcudaPod("name: "+name, "", [2]string{"main", vcuda(cores, memory)}))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.remove(t, name) })
}

// vcudaRounds returns how often simultaneous pods are created: VCUDA_ROUNDS times, by default once.
func vcudaRounds(t *testing.T) int {
	t.Helper()
	rounds, err := strconv.Atoi(cmp.Or(os.Getenv("VCUDA_ROUNDS"), "1"))
	if err != nil {
		t.Fatal(err)
	}
	return rounds
}

// vcudaSimultaneous creates pods of several sizes simultaneously, with one command: ten whose init container has the same
// request, and two copies of each pod of vcudaKinds. Each pod has its own limit.
func vcudaSimultaneous(t *testing.T, c *cluster) {
	var manifests []string
	var gib []int // the limits of the manifests
	for i := range 10 {
		size := 1 + i%5
		request := vcuda(20, 1024*size)
		manifests = append(manifests, vcudaPod(fmt.Sprint("name: pod-", i), "", [2]string{"init", request}, [2]string{"main", request}))
		gib = append(gib, size)
	}
	for range 2 {
		for _, kind := range vcudaKinds {
			manifests = append(manifests, vcudaPod("generateName: "+kind.prefix, "", kind.containers...))
			gib = append(gib, kind.gib)
		}
	}
	names := c.createPods(t, manifests...)
	for i, name := range names {
		for again := 0; !c.awaitRunningOrClaimHidden(t, name); again++ {
			if again == 5 {
				t.Fatal("the status of 5 copies of a pod lacks claims")
			}
			c.remove(t, name)
			name = c.createPods(t, manifests[i])[0]
			names[i] = name
		}
	}
	oneGPU := c.checkPodLimits(t, names, gib)
	for i := 5; i < 10+len(vcudaKinds); i++ { // one pod of each size and kind, since a check in a pod takes seconds
		if oneGPU[i] {
			c.checkLimit(t, names[i], gib[i])
		}
	}
}

// vcudaKinds are pods with names that the API server generates. The limits of the claims of a pod on a GPU add up.
var vcudaKinds = []struct {
	prefix     string
	gib        int // the memory limit
	containers [][2]string
}{
	{"sidecar-", 3, [][2]string{{"sidecar", vcuda(5, 1024)}, {"main", vcuda(5, 2048)}}},
	{"init-", 5, [][2]string{{"init", vcuda(5, 3072)}, {"main", vcuda(5, 2048)}}},
	{"two-", 4, [][2]string{{"main", vcuda(5, 2048)}, {"other", vcuda(5, 2048)}}},
	{"one-", 4, [][2]string{{"main", vcuda(10, 4096)}}},
}

// createPods creates pods with one command, and removes them when the test ends. It returns their names.
func (c *cluster) createPods(t *testing.T, manifests ...string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pods.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(manifests, "\n---\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	names := strings.Fields(strings.ReplaceAll(c.kubectl(t, "create", "-f", file, "-o", "name"), "pod/", ""))
	t.Cleanup(func() {
		args := append([]string{"delete", "pod", "--ignore-not-found", "--timeout", timeout.String()}, names...)
		if out, err := c.Kubectl(context.Background(), args...); err != nil {
			t.Errorf("deleting pods: %v\n%s", err, out)
		}
	})
	return names
}

// awaitRunningOrClaimHidden waits until a pod runs. It returns false if the status of a pod with several claims has only
// some of them. Before version 1.37 (https://github.com/kubernetes/kubernetes/issues/138407), Kubernetes can then
// alternate between them forever, and the pod stays pending.
func (c *cluster) awaitRunningOrClaimHidden(t *testing.T, pod string) (running bool) {
	t.Helper()
	await(t, pod+" to run", func() (string, bool) {
		var now core.Pod
		if err := json.Unmarshal([]byte(c.kubectl(t, "get", "pod", pod, "-o", "json")), &now); err != nil {
			t.Fatal(err)
		}
		running = now.Status.Phase == core.PodRunning && !slices.ContainsFunc(now.Status.ContainerStatuses, func(s core.ContainerStatus) bool { return !s.Ready })
		claims := len(now.Status.ResourceClaimStatuses)
		return fmt.Sprint(now.Status), running || claims > 0 && claims < len(now.Spec.ResourceClaims)
	})
	if !running {
		t.Logf("pod %s is pending, because its status lacks claims", pod)
	}
	return running
}

// checkPodLimits checks that the driver limits each pod to a number of GiB. It returns which pods have one GPU: claims of a
// pod can be on different GPUs, each of which then has a part of the limit.
func (c *cluster) checkPodLimits(t *testing.T, names []string, gib []int) (oneGPU []bool) {
	t.Helper()
	limits, err := c.driver.MemoryLimits()
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		var sum uint64
		each := limitsOf(limits, c.kubectl(t, "get", "pod", name, "-o", "jsonpath={.metadata.uid}"))
		for _, limit := range each {
			sum += limit
		}
		if sum != uint64(gib[i])<<30 {
			t.Errorf("pod %s has the limits %v bytes, want %d GiB", name, each, gib[i])
		}
		oneGPU = append(oneGPU, len(each) == 1)
	}
	return oneGPU
}

// withoutController creates a pod while no controller runs. The pod waits, and never runs without a limit.
func withoutController(t *testing.T, c *cluster) {
	c.kubectl(t, "scale", "--namespace", "gpucdi", "deployment/gpucdi-vcuda", "--replicas=0")
	c.kubectl(t, "wait", "--namespace", "gpucdi", "--for=delete", "pod", "--selector=app.kubernetes.io/name=gpucdi-vcuda", "--timeout="+timeout.String())
	c.applyVCUDA(t, "waits", 33, 3072)
	c.awaitOutput(t, "FailedResourceClaimCreation", func(t *testing.T) string { return c.kubectl(t, "describe", "pod", "waits") })
	c.kubectl(t, "scale", "--namespace", "gpucdi", "deployment/gpucdi-vcuda", "--replicas=1")
	c.awaitPhase(t, "waits", "Running")
	c.checkLimit(t, "waits", 3)
}

// awaitPolicies waits until the API server, which applies changed policies with a delay, replaces a request by a template.
func (c *cluster) awaitPolicies(t *testing.T, domain, template string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pod.yaml")
	if err := os.WriteFile(file, []byte(gpuManagerPods(domain, 30, 30)[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	c.awaitOutput(t, template, func(t *testing.T) string {
		out, err := c.Kubectl(t.Context(), "create", "--dry-run=server", "-f", file, "-o", "jsonpath={.spec.resourceClaims[*].resourceClaimTemplateName}")
		return fmt.Sprint(string(out), err)
	})
}

// withoutPolicies removes the bindings of the admission policies one after the other. Pods are refused without the one
// that replaces their requests, and pending without any. It must be the last case with policies.
func withoutPolicies(t *testing.T, c *cluster) {
	for _, tc := range []struct{ kind, pod, want string }{
		{"mutatingadmissionpolicybinding", "refused", "nvidia.com/vcuda-core was not replaced by a claim"},
		{"validatingadmissionpolicybinding", "pending", "Insufficient nvidia.com/vcuda-core"},
	} {
		c.kubectl(t, "delete", tc.kind, "gpucdi-vcuda")
		manifest := vcudaPod("name: "+tc.pod, "", [2]string{"main", vcuda(30, 2048)})
		t.Cleanup(func() { c.remove(t, tc.pod) })
		// The API server applies the change with a delay, and until then replaces or refuses the request.
		c.awaitOutput(t, tc.want, func(t *testing.T) string {
			c.remove(t, tc.pod)
			if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
				return err.Error()
			}
			time.Sleep(time.Second) // for the scheduler
			return c.kubectl(t, "describe", "pod", tc.pod)
		})
	}
}
