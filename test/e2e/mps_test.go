package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

// ceilingSection is the section of docs/sharing.md about limited compute time. Its first config is for replicas, its
// second one for claims.
const ceilingSection = "Limit the compute time"

// mpsDir is the pipe directory of the MPS daemon on the node.
const mpsDir = "/run/gpucdi/mps"

// multiprocessors is the number of multiprocessors of the node's GPUs.
const multiprocessors = "132"

// computeCeilings runs pods with parts of a GPU and compute ceilings, with the commands and the config of
// docs/sharing.md.
func computeCeilings(t *testing.T, c *cluster) {
	version := c.driver.State().Version
	c.emulateCgroup2(t)
	if err := c.driver.Upgrade("615.71.09"); err != nil {
		t.Fatal(err)
	}
	// Earlier cases patched the ConfigMap, so without --force-conflicts Helm would report a conflict.
	c.sh(t, "helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --force-conflicts --wait")
	c.sh(t, blocksOf(t, sharingDocument, ceilingSection, "sh")[0])
	c.awaitOneAgent(t)
	await(t, "the MPS daemon", func() (string, bool) {
		_, err := os.Stat(c.Box.Path(filepath.Join(mpsDir, "control")))
		return fmt.Sprint(err), err == nil
	})
	configs := blocksOf(t, sharingDocument, ceilingSection, "yaml")
	c.configure(t, configs[1])
	defer func() {
		c.sh(t, "helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --set mpsDaemon.enabled=false --wait --force-conflicts")
		c.awaitOneAgent(t)
		if err := c.driver.Upgrade(version); err != nil {
			t.Error(err)
		}
		c.configure(t, "allocation: {mode: dra}\n")
	}()
	c.awaitOutput(t, strings.TrimSpace(strings.Repeat("ceiling ", 8)), func(t *testing.T) string {
		return c.kubectl(t, "get", "resourceslices", "-o", `jsonpath={.items[*].spec.devices[*].attributes.gpucdi\.dev/computeIsolation.string}`)
	})
	t.Run("claims", func(t *testing.T) { ceiledPods(t, c) })
	c.awaitNoServers(t)
	c.configure(t, configs[0])
	c.awaitGPUs(t, "32")
	t.Run("replicas", func(t *testing.T) { ceiledReplicas(t, c) })
}

// awaitNoServers waits until no MPS server runs.
func (c *cluster) awaitNoServers(t *testing.T) {
	t.Helper()
	await(t, "the servers to end", func() (string, bool) {
		out := c.sh(t, "ls "+mpsDir)
		return out, !strings.Contains(out, "gpu_")
	})
}

// ceiledReplicas runs pods with replicas of a GPU, whose memory and compute time are limited.
func ceiledReplicas(t *testing.T, c *cluster) {
	const replica = "limits: {nvidia.com/gpu: 1}"
	c.runNonRoot(t, "first", "", replica)
	c.runNonRoot(t, "second", "", replica)
	// A quarter of the 132 multiprocessors is 33. They are assigned in pairs.
	c.seesMultiprocessors(t, "first", "", "0 32")
	c.seesMultiprocessors(t, "second", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100", "0 32")
	c.run(t, "root-replica", 1)
	c.awaitOutput(t, `containers ["main"] of pod default/root-replica may run as root`, func(t *testing.T) string {
		return c.kubectl(t, "get", "events", "--field-selector", "involvedObject.name=root-replica", "-o", "jsonpath={.items[*].message}")
	})

	// When a container restarts, the kubelet repeats the response of Allocate. So the agent must write the removed CDI
	// devices again.
	c.killAgent(t)
	c.runOnNode(t, "touch /tmp/replicas && pkill -9 -f ^/usr/bin/nvidia-cuda-mps-control && rm /var/run/cdi/gpucdi.dev-replica-*")
	await(t, "the servers", func() (string, bool) {
		out := c.sh(t, "find "+mpsDir+" -name control -newer /tmp/replicas")
		return out, strings.Count(out, "/gpu_") == 16 // of the 8 servers and their namespaces "default"
	})
	c.restartContainer(t, "second")
	c.seesMultiprocessors(t, "second", "", "0 32")

	// Whole GPUs are used without MPS.
	c.configure(t, "labels: {place: node}\n")
	for _, name := range []string{"first", "second", "root-replica"} {
		c.remove(t, name)
	}
	await(t, "the replicas to be withdrawn", func() (string, bool) {
		now := c.kubectl(t, "get", "node", node.Name, "-o", `jsonpath={.status.allocatable.nvidia\.com/gpu}`)
		return now, now != "32"
	})
	c.run(t, "whole", 1) // pending until the agent has reset the compute mode of a GPU
	c.awaitPhase(t, "whole", "Running")
	c.seesMultiprocessors(t, "whole", "", "0 "+multiprocessors)
	c.awaitNoServers(t)
	c.awaitGPUs(t, "8")

	// The compute mode of GPUs whose agent was removed too early is reset by hand.
	c.sh(t, "nvidia-smi --compute-mode=PROHIBITED")
	c.seesMultiprocessors(t, "whole", "", "46 0")
	c.sh(t, blocksOf(t, sharingDocument, "Stop limiting the compute time", "sh")[0])
	c.seesMultiprocessors(t, "whole", "", "0 "+multiprocessors)
}

func ceiledPods(t *testing.T, c *cluster) {
	// Servers hang, although the daemon reports them as ready.
	c.setMPSFault(t, simdriver.MPSWedged, true)
	c.runCeiled(t, "first", "cores: 25, memory: 20Gi")
	c.awaitOutput(t, "gpucdi.dev/mps", c.taints)
	c.setMPSFault(t, simdriver.MPSWedged, false)
	await(t, "no taint", func() (string, bool) { now := c.taints(t); return now, now == "" })

	c.runCeiled(t, "second", "cores: 25, memory: 20Gi", "computeCeiling: 50")
	first, second := c.onlyGPUOf(t, "first"), c.onlyGPUOf(t, "second")
	if first != second {
		t.Errorf("the pods have GPUs %s and %s, want the same GPU", first, second)
	}
	c.seesMultiprocessors(t, "first", "", "0 32")
	c.seesMultiprocessors(t, "second", "", "0 66")
	c.seesMultiprocessors(t, "first", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100", "0 32")
	c.checkLimit(t, "second", 20)
	c.hasOnlyDriver(t, "second", "/run/nvidia-mps")

	// A program that does not find its server does not get the GPU, which no other program uses: CUDA returns 46, device
	// unavailable.
	c.seesMultiprocessors(t, "second", "CUDA_MPS_PIPE_DIRECTORY=/nowhere", "46 0")

	c.runWithShare(t, "root", "cores: 25, memory: 10Gi")
	c.awaitOutput(t, `containers ["main"] of pod default/root may run as root`, func(t *testing.T) string {
		return c.kubectl(t, "get", "events", "--field-selector", "involvedObject.name=root", "-o", "jsonpath={.items[*].message}")
	})
	c.claim(t, "whole", 1)
	c.runWithClaim(t, "whole", "whole")
	c.awaitPhase(t, "whole", "Running")
	c.seesMultiprocessors(t, "whole", "", "0 "+multiprocessors)

	c.killAgent(t)
	c.seesMultiprocessors(t, "second", "", "0 66")
	for _, program := range []string{"control", "server"} {
		c.runOnNode(t, "touch /tmp/killed && pkill -9 -f ^/usr/bin/nvidia-cuda-mps-"+program)
		took := await(t, "the namespaces of the claims after the end of the "+program, func() (string, bool) {
			out := c.sh(t, "find "+mpsDir+" -name control -newer /tmp/killed")
			return out, strings.Count(out, "/gpu_") == 4 // of the server, its namespace default and the claims of pods first and second
		})
		t.Logf("%s killed: restored after %s", program, took.Round(time.Millisecond))
		c.restartContainer(t, "second")
		c.seesMultiprocessors(t, "second", "", "0 66")
	}
	withoutMPSDaemon(t, c)

	c.setMPSFault(t, simdriver.MPSCommandsHang, true)
	c.awaitOutput(t, "gpucdi.dev/mps", c.taints)
	c.setMPSFault(t, simdriver.MPSCommandsHang, false)
	await(t, "no taint", func() (string, bool) { now := c.taints(t); return now, now == "" })
	if want := fmt.Sprintf(`gpucdi_device_isolation_info{compute="ceiling",device="%[1]s",gpu="%[1]s",memory="driver"} 1`, second); !strings.Contains(c.metrics(t), want) {
		t.Errorf("the metrics lack %s", want)
	}
	brokenServers(t, c, second)
	outlivingContainer(t, c)
	ceiledUserNamespace(t, c)
}

// brokenServers kills a program of pod first, after which the server of the GPU hangs, as servers do if a program is
// killed while its kernels run. The server is replaced when pods first and second have ended. Afterwards, servers vanish
// when they have been created, and a pod does not start.
func brokenServers(t *testing.T, c *cluster, gpu string) {
	t.Helper()
	c.restartContainer(t, "first") // it has lost its server with the first daemon
	c.seesMultiprocessors(t, "first", "", "0 32")
	c.exec(t, "first", "/tmp/context hold >/dev/null 2>&1 & sleep 1; kill -9 $!")
	server := filepath.Join(c.Box.Path(mpsDir), strings.ToLower(strings.ReplaceAll(gpu, "-", "_")))
	if err := simdriver.SetMPSFault(server, simdriver.MPSWedged); err != nil { // ends with the server
		t.Fatal(err)
	}
	c.awaitOutput(t, "gpucdi.dev/mps", c.taints)
	c.remove(t, "first")
	c.remove(t, "second")
	await(t, "no taint", func() (string, bool) { now := c.taints(t); return now, now == "" })
	c.awaitNoServers(t)

	c.setMPSFault(t, simdriver.MPSServerVanishes, true)
	c.startCeiled(t, "vanished", "cores: 25, memory: 10Gi")
	c.awaitOutput(t, "MPS", func(t *testing.T) string {
		return c.kubectl(t, "get", "events", "--field-selector", "involvedObject.name=vanished,reason=FailedPrepareDynamicResources", "-o", "jsonpath={.items[*].message}")
	})
	if phase := c.kubectl(t, "get", "pod", "vanished", "-o", "jsonpath={.status.phase}"); phase != "Pending" {
		t.Errorf("pod vanished is %s without an MPS server", phase)
	}
	c.setMPSFault(t, simdriver.MPSServerVanishes, false)
	c.retry(t, "vanished")
	c.awaitPhase(t, "vanished", "Running")
	c.seesMultiprocessors(t, "vanished", "", "0 32")
	c.remove(t, "vanished")
}

// outlivingContainer deletes the only pod with a part of a GPU by force. The kubelet can unprepare its claim before the
// container ends. At no time do programs of the container get all of the GPU.
func outlivingContainer(t *testing.T, c *cluster) {
	t.Helper()
	const name = "outliving"
	c.claim(t, name, 1, "capacity: {requests: {cores: 25, memory: 10Gi}}")
	manifest := nonRoot(name, 20, "resourceClaims: [{name: gpu, resourceClaimName: "+name+"}],", "claims: [{name: gpu}]",
		`[sh, -c, "trap 'while sleep 0.2; do timeout 5 /tmp/context; done' TERM; mkfifo /tmp/end; exec 3<>/tmp/end; read line <&3"]`)
	if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
	c.awaitPhase(t, name, "Running")
	c.seesMultiprocessors(t, name, "", "0 32")
	logs, err := filepath.Glob(c.Box.Path("/var/log/pods/default_" + name + "_*/main/0.log"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("logs %q, error %v", logs, err)
	}
	c.kubectl(t, "delete", "pod", name, "--grace-period=0", "--force")
	seen := ""
	await(t, "the container to end", func() (string, bool) {
		data, err := os.ReadFile(logs[0])
		if err == nil {
			seen = string(data)
		}
		return seen, err != nil
	})
	if strings.Contains(seen, " 0 "+multiprocessors) {
		t.Errorf("after the deletion, programs of the container see\n%s", seen)
	}
	t.Logf("%d programs ran after the deletion, %d of them were refused", strings.Count(seen, "\n"), strings.Count(seen, " 46 0"))
	c.awaitNoServers(t)
}

// ceiledUserNamespace runs a pod as root in a user namespace. It gets its part of a GPU, since it is not root on the
// node.
func ceiledUserNamespace(t *testing.T, c *cluster) {
	t.Helper()
	c.runOnNode(t, coverDriver)
	defer c.runOnNode(t, uncoverDriver)
	c.claimDevices(t, "userns", ceiledDevices("cores: 25, memory: 10Gi", "computeCeiling: 60"))
	manifest := strings.NewReplacer("spec:\n", "spec:\n  resourceClaims: [{name: gpu, resourceClaimName: userns}]\n",
		"limits: {nvidia.com/gpu: 1}", "claims: [{name: gpu}]").Replace(userNamespacePod)
	if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
	defer c.remove(t, "userns")
	c.awaitPhase(t, "userns", "Running")
	if user := c.exec(t, "userns", "id -u"); user != "0" {
		t.Errorf("pod userns runs as user %s, want root", user)
	}
	c.seesMultiprocessors(t, "userns", "", "0 78") // 60% are 79.2

	// The server that it uses remains when the claim of another pod ends, also after the next check of the agent.
	server := func() string {
		out, err := c.Box.Command(t.Context(), "pgrep", "-f", "^/usr/bin/nvidia-cuda-mps-server").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	before := server()
	c.runCeiled(t, "ending", "cores: 25, memory: 10Gi")
	c.remove(t, "ending")
	time.Sleep(12 * time.Second)
	if now := server(); now != before {
		t.Errorf("the processes of MPS servers were %q and are %q", before, now)
	}
}

// withoutMPSDaemon checks that a program of a running container does not get the whole GPU while no MPS daemon runs on the
// node, and that the claims are served again by the next daemon. Pod second has half of a GPU.
func withoutMPSDaemon(t *testing.T, c *cluster) {
	t.Helper()
	c.kubectl(t, "patch", "daemonset", "gpucdi-mps", "--namespace", "gpucdi", "--patch", `{"spec": {"template": {"spec": {"nodeSelector": {"no": "node"}}}}}`)
	// In the moment between the end of the server and the change of the compute mode, a program could get the GPU.
	c.awaitOutput(t, "46 0", func(t *testing.T) string { return c.multiprocessors(t, "second", "") })
	c.awaitOutput(t, "gpucdi.dev/mps", c.taints)
	c.kubectl(t, "patch", "daemonset", "gpucdi-mps", "--namespace", "gpucdi", "--patch", `{"spec": {"template": {"spec": {"nodeSelector": {"no": null}}}}}`)
	await(t, "no taint", func() (string, bool) { now := c.taints(t); return now, now == "" })
	c.restartContainer(t, "second")
	c.seesMultiprocessors(t, "second", "", "0 66")
}

// setMPSFault injects a fault into the MPS daemon, or removes it.
func (c *cluster) setMPSFault(t *testing.T, fault simdriver.MPSFault, on bool) {
	t.Helper()
	set := simdriver.ClearMPSFault
	if on {
		set = simdriver.SetMPSFault
	}
	if err := set(c.Box.Path(mpsDir), fault); err != nil {
		t.Fatal(err)
	}
}

// startCeiled is startNonRoot for a pod with a claim of the same name that requests capacity, with settings of its
// DeviceConfig.
func (c *cluster) startCeiled(t *testing.T, name, capacity string, settings ...string) {
	t.Helper()
	c.claimDevices(t, name, ceiledDevices(capacity, settings...))
	c.startNonRoot(t, name, "resourceClaims: [{name: gpu, resourceClaimName: "+name+"}],", "claims: [{name: gpu}]")
}

// ceiledDevices returns the devices of a claim that requests capacity, with settings of its DeviceConfig.
func ceiledDevices(capacity string, settings ...string) string {
	fields := "requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, capacity: {requests: {" + capacity + "}}}}]"
	if len(settings) > 0 {
		fields += ", config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: gpucdi.dev/v1, kind: DeviceConfig, " + strings.Join(settings, ", ") + "}}}]"
	}
	return fields
}

// runCeiled is like startCeiled, and waits until the pod runs.
func (c *cluster) runCeiled(t *testing.T, name, capacity string, settings ...string) {
	t.Helper()
	c.startCeiled(t, name, capacity, settings...)
	c.awaitPhase(t, name, "Running")
}

// runNonRoot is like startNonRoot, and waits until the pod runs.
func (c *cluster) runNonRoot(t *testing.T, name, fields, resources string) {
	t.Helper()
	c.startNonRoot(t, name, fields, resources)
	c.awaitPhase(t, name, "Running")
}

// startNonRoot starts a pod that does not run as root, with more fields of the pod and the resources of its container.
func (c *cluster) startNonRoot(t *testing.T, name, fields, resources string) {
	t.Helper()
	if err := c.Apply(t.Context(), []byte(nonRoot(name, 1, fields, resources, untilEnd))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.remove(t, name) })
}

// nonRoot returns the manifest of a pod that does not run as root, with a grace period in seconds.
func nonRoot(name string, grace int, fields, resources, command string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s}, spec: {terminationGracePeriodSeconds: %d, securityContext: {runAsNonRoot: true, runAsUser: 1000}, %s
containers: [{name: main, image: %s, imagePullPolicy: Never, securityContext: {allowPrivilegeEscalation: false}, resources: {%s},
command: %s}]}}`, name, grace, fields, images.DebianName, resources, command)
}

// awaitOneAgent waits until the agent's pod is the only one, after it was replaced.
func (c *cluster) awaitOneAgent(t *testing.T) {
	t.Helper()
	await(t, "one pod of the agent", func() (string, bool) {
		pods := c.agentPod(t)
		return pods, pods != "" && !strings.Contains(pods, " ")
	})
}

// seesMultiprocessors checks what multiprocessors returns.
func (c *cluster) seesMultiprocessors(t *testing.T, pod, variable, want string) {
	t.Helper()
	if got := c.multiprocessors(t, pod, variable); got != want {
		t.Errorf("pod %s with %q sees %q, want %q", pod, variable, got, want)
	}
}

// multiprocessors runs testdata/context.c in a pod with an environment variable. It returns the result code of CUDA and
// the number of multiprocessors that the program may use: "0 132".
func (c *cluster) multiprocessors(t *testing.T, pod, variable string) string {
	t.Helper()
	return strings.TrimSpace(c.exec(t, pod, contextProgram.install(t)+fmt.Sprintf("env %s timeout 60 /tmp/context || true", variable)))
}
