package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

const nriDocument = "docs/nri.md"

// nriChecks enables the checks of docs/nri.md. A container with a GPU that was not allocated to it is rejected. Other
// containers start, including that of gpucdi doctor. While the agent does not respond, all containers start.
func nriChecks(t *testing.T, c *cluster) {
	c.configure(t, strings.Replace(blocksOf(t, nriDocument, "Enable it", "yaml")[0], "true", "true, foreign: reject", 1))
	defer c.configure(t, "")
	c.awaitOutput(t, "containers checked for", c.status)
	c.run(t, "checked", 1)
	c.awaitPhase(t, "checked", "Running")
	held := c.gpusOf(t, "checked")
	free := c.driver.State().GPUs[slices.IndexFunc(c.driver.State().GPUs, func(g simdriver.GPU) bool { return !slices.Contains(held, g.UUID) })].UUID
	if err := c.createContainer(t, free); err == nil || !strings.Contains(err.Error(), "/forged has device nodes of "+free+", which were not allocated to it") {
		t.Errorf("a container with a GPU that was not allocated to it: error %v", err)
	}
	if err := c.createContainer(t, ""); err != nil {
		t.Errorf("a container without a GPU: %v", err)
	}
	c.remove(t, "checked")
	doctorLaunch(t, c)

	c.runOnNode(t, "pkill -STOP -x gpucdi")
	c.run(t, "unchecked", 0)
	c.awaitPhase(t, "unchecked", "Running")
	c.runOnNode(t, "pkill -CONT -x gpucdi")
	c.awaitOutput(t, "containers checked for", c.status)
	c.remove(t, "unchecked")
}

// createContainer creates a container like those of the kubelet in the agent's pod, with a GPU unless uuid is empty, and
// removes it. The kubelet ignores it, whereas it ends pods that it did not create.
func (c *cluster) createContainer(t *testing.T, uuid string) error {
	t.Helper()
	client, ctx := c.runtimeService(t), t.Context()
	pods, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
		State:         &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY},
		LabelSelector: map[string]string{"app.kubernetes.io/name": "gpucdi"},
	}})
	if err != nil || len(pods.GetItems()) != 1 {
		t.Fatalf("found the pods of the agent %v (%v), want 1", pods.GetItems(), err)
	}
	pod := pods.GetItems()[0]
	namespaces := &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}
	sandbox := &cri.PodSandboxConfig{
		Metadata:     pod.GetMetadata(),
		LogDirectory: "/run/gpucdi", // without a log, the kubelet could remove files of its working directory
		Linux:        &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: namespaces}},
	}
	container := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "forged"}, Image: &cri.ImageSpec{Image: images.DebianName}, Command: []string{"true"},
		LogPath: "forged.log",
		Labels:  map[string]string{"io.kubernetes.container.name": "forged", "io.kubernetes.pod.uid": pod.GetMetadata().GetUid()},
		Linux:   &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: namespaces}},
	}
	if uuid != "" {
		container.CDIDevices = []*cri.CDIDevice{{Name: "gpucdi.dev/gpu=" + uuid}}
	}
	created, err := client.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: pod.GetId(), Config: container, SandboxConfig: sandbox})
	if err != nil {
		return err
	}
	if _, err := client.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: created.GetContainerId()}); err != nil {
		t.Error(err)
	}
	return nil
}

// enableNRI enables NRI in the config file of containerd 1.7, and restarts it.
func (c *cluster) enableNRI(t *testing.T, file string) {
	t.Helper()
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c.configureRuntime(t, file, string(config)+"\n"+blocksOf(t, nriDocument, "Enable it", "toml")[0])
}

// configureRuntime replaces a configuration file of the container runtime, and restarts it.
func (c *cluster) configureRuntime(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c.restartRuntime(t)
}

// nriDisabled are settings of the configuration files of container runtimes, by the runtime's name in the node status.
var nriDisabled = map[string]struct{ file, setting string }{
	"containerd": {"/etc/containerd/config.toml", "[plugins.'io.containerd.nri.v1.nri']\ndisable = true"},
	"cri-o":      {"/etc/crio/crio.conf", "[crio.nri]\nenable_nri = false"},
}

// limitsWhileNRIDisabled disables NRI in a runtime that enables it by default, and enables it again.
func limitsWhileNRIDisabled(t *testing.T, c *cluster) {
	name, _ := c.runtime(t)
	disabled := nriDisabled[name]
	file := c.Box.Path(disabled.file)
	config, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c.configureRuntime(t, file, string(config)+"\n"+disabled.setting+"\n")
	limitsWithoutNRI(t, c)
	c.configureRuntime(t, file, string(config))
}

// nriMissing is the row of gpucdi status for a runtime in which NRI is disabled. If NRI was enabled before, the socket
// can be left.
var nriMissing = regexp.MustCompile(`(?m)^ *nri +error +connecting to NRI: .*(no such file or directory|connection refused)`)

// limitsWithoutNRI starts a pod with a quarter of a GPU while NRI is enabled in the config of the agent, but disabled in
// the runtime. Status reports that containers are not checked, and the pod has its memory limit.
func limitsWithoutNRI(t *testing.T, c *cluster) {
	version, gpu := c.driver.State().Version, c.driver.State().GPUs[7]
	c.emulateCgroup2(t)
	if err := c.driver.Upgrade("615.71.09"); err != nil {
		t.Fatal(err)
	}
	c.configure(t, quarterConfig(t, gpu.UUID))
	c.awaitAllocatable(t, quarterResource, "4")
	c.run(t, "limited", 0, "resources: {limits: {"+quarterResource+": 1}}")
	c.awaitPhase(t, "limited", "Running")
	mebibytes := int(gpu.Memory / mib / 4)
	for more, want := range []string{cudaSuccess, cudaOutOfMemory} {
		if got := c.tryAllocate(t, "limited", mebibytes-100, 100+more); got != want {
			t.Errorf("allocating %d MiB without NRI: CUDA returns %s, want %s", mebibytes+more, got, want)
		}
		c.endAllocations(t, "limited")
	}
	if out := c.status(t); !nriMissing.MatchString(out) {
		t.Errorf("gpucdi status without NRI prints\n%s", out)
	}
	c.remove(t, "limited")
	if err := c.driver.Upgrade(version); err != nil {
		t.Fatal(err)
	}
	c.configure(t, "")
	c.awaitGPUs(t, "8")
}

// rejectsWithoutCDI enables NRI in the config file of containerd, with CDI disabled. The container of a pod with a GPU
// is rejected.
func (c *cluster) rejectsWithoutCDI(t *testing.T, file string) {
	t.Helper()
	c.enableNRI(t, file)
	c.configure(t, blocksOf(t, nriDocument, "Enable it", "yaml")[0])
	c.awaitOutput(t, "containers checked for", c.status)
	c.start(t, "lacking", 1)
	c.awaitOutput(t, "container default/lacking/main lacks the device nodes of GPU-", func(t *testing.T) string {
		t.Helper()
		return c.kubectl(t, "describe", "pod", "lacking")
	})
	c.remove(t, "lacking")
	c.configure(t, "")
}

// claimWithoutCDI disables CDI in the config file of containerd 1.7. The container of a pod with a claim is reported, and
// rejected once NRI is enabled. It leaves NRI enabled.
func (c *cluster) claimWithoutCDI(t *testing.T) {
	setCDI := func(from, to string) {
		t.Helper()
		c.runOnNode(t, "sed -i 's/enable_cdi = "+from+"/enable_cdi = "+to+"/' /etc/containerd/config.toml")
		c.restartRuntime(t)
	}
	setCDI("true", "false")
	c.claim(t, "lacking", 1)
	c.runWithClaim(t, "lacking", "lacking")
	c.awaitPhase(t, "lacking", "Running")
	c.awaitOutput(t, "lacks its GPU", c.status)
	c.sh(t, "helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --set config.nri.enabled=true --wait")
	c.syncConfig(t)
	c.awaitOutput(t, "containers checked for", c.status)
	c.exitContainer(t, "lacking")
	c.awaitOutput(t, "container default/lacking/main lacks the device nodes of GPU-", func(t *testing.T) string {
		t.Helper()
		return c.kubectl(t, "describe", "pod", "lacking")
	})
	setCDI("false", "true")
	c.retry(t, "lacking")
	c.awaitPhase(t, "lacking", "Running")
	c.onlyGPUOf(t, "lacking")
}

// checkContainerLimit checks that the cgroup of a pod's only container, not just that of the pod, has a GPU memory limit.
// Without the cgroup controller dmem it has none.
func (c *cluster) checkContainerLimit(t *testing.T, pod string, bytes uint64) {
	t.Helper()
	limits, err := c.driver.MemoryLimits()
	if err != nil {
		t.Fatal(err)
	}
	_, id, _ := strings.Cut(c.containerID(t, pod), "://")
	limited := slices.ContainsFunc(limits, func(l simdriver.MemoryLimit) bool {
		return strings.HasSuffix(filepath.Base(l.Cgroup), id) && l.Bytes == bytes
	})
	controllers, err := c.Box.Command(t.Context(), "cat", "/sys/fs/cgroup/cgroup.controllers").Output()
	if err != nil {
		t.Fatal(err)
	}
	if dmem := strings.Contains(string(controllers), "dmem"); limited != dmem {
		t.Errorf("the container %s of pod %s has a limit of %d bytes: %t, the cgroup controller dmem: %t: %v", id, pod, bytes, limited, dmem, limits)
	}
}
