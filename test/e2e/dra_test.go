package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/simdriver"
)

const draDocument = "docs/dra.md"

// A claimCase runs on a node with DRA, and leaves all GPUs free and in the slices unless it is the last one.
type claimCase struct {
	name string
	run  func(*testing.T, *cluster)
}

var wholeGPUCases = []claimCase{
	{"a pod keeps the GPU of its claim", claimSurvives},
	{"claims and pods that request nvidia.com/gpu share the node", claimsAndPods},
	{"a pod waits for the containers of a force-deleted pod", forcedDelete},
	{"a fault taints the GPU and is in the status of the pod", claimHealth},
	{"a cordon taints the GPU and evicts no pod", claimCordoned},
	{"changed slices are restored", slicesRestored},
	{"the slices are withdrawn while another driver of the same name serves the node", anotherDriverOnNode},
	{"slices are correct after an outage of the API server", apiServerOutage},
	{"a claim whose GPU is held is refused, and the message names the holder", heldClaim},
	{"manifests for NVIDIA's DRA driver work", nvidiaManifests},
	{"a claim and its class select driver capabilities", claimedFeatures},
	{"docs/dra.md requests a GPU", documentedClaim},
	{"a GPU without a usable device node is tainted", wrongDeviceNode},
	{"the slices are empty without a driver", withoutDriver},
	{"an agent writes only slices and Events of its node", agentPolicies},
	{"a rule moves a single GPU to DRA", singleGPU},
	{"a DeviceClass selects the GPUs of a rule", namedGPU},
	{"a fault evicts the pod of the GPU", evictedByTaint},
	{"the node moves to DRA and back while pods hold GPUs", migration},
	{"random claims, pods, migrations and restarts", claimSoak},
	{"a fault sets condition and taint of the node", nodeRemediation},
}

// TestDRA allocates whole GPUs to claims, and moves GPUs between the device plugin and DRA.
func TestDRA(t *testing.T) {
	inTurn(t, 16)
	runClaimCases(t, wholeGPUCases)
}

// runClaimCases moves a node to DRA with the commands of docs/dra.md, and runs the cases on it.
func runClaimCases(t *testing.T, cases []claimCase) {
	t.Helper()
	c := startCluster(t, node.Config{})
	defer c.keepsRuntimeConfig(t)()
	c.enableDRA(t)
	c.awaitSlices(t, 0)
	c.doc(t, "Move a node to DRA")
	c.awaitSlices(t, 8)
	c.awaitGPUs(t, "0")
	if out := c.sh(t, "NODE="+node.Name+"\n"+blocksOf(t, draDocument, "Move a node to DRA", "sh")[1]); !strings.Contains(out, "gpu.nvidia.com") {
		t.Errorf("the commands to watch a move print\n%s", out)
	}
	for _, tc := range cases {
		if !t.Run(tc.name, func(t *testing.T) { tc.run(t, c) }) {
			return
		}
	}
}

// doc runs the first block of commands in a section of docs/dra.md, for this node.
func (c *cluster) doc(t *testing.T, section string) {
	t.Helper()
	c.sh(t, "NODE="+node.Name+"\n"+blocksOf(t, draDocument, section, "sh")[0])
}

// enableDRA replaces the plain manifest with the chart, and enables DRA.
func (c *cluster) enableDRA(t *testing.T) {
	t.Helper()
	c.sh(t, blocksOf(t, "README.md", "Uninstall", "sh")[0])
	c.helm(t, "Install", 0)
	c.awaitGPUs(t, "8")
	c.sh(t, fmt.Sprintf("helm upgrade gpucdi deploy/gpucdi --namespace gpucdi --reuse-values --set 'kubeletDir=%s,spread=%s,dra.migProfiles={3g.40gb}' --wait", c.KubeletDir(), spread))
	c.doc(t, "Enable DRA")
	c.awaitRollout(t)
}

// slices returns the UUIDs of the devices in the node's ResourceSlices, in their order there.
func (c *cluster) slices(t *testing.T) []string {
	t.Helper()
	uuids, err := c.readSlices(t)
	if err != nil {
		t.Fatal(err)
	}
	return uuids
}

// readSlices is like slices, but returns an error, for example while the API server is restarted.
func (c *cluster) readSlices(t *testing.T) ([]string, error) {
	t.Helper()
	out, err := c.Kubectl(t.Context(), "get", "resourceslices", "-o", `jsonpath={.items[*].spec.devices[*].attributes.uuid.string}`)
	return strings.Fields(string(out)), err
}

func (c *cluster) awaitSlices(t *testing.T, want int) {
	t.Helper()
	took := await(t, fmt.Sprintf("%d devices in the slices", want), func() (string, bool) {
		now, err := c.readSlices(t)
		return fmt.Sprint(now, err), err == nil && len(now) == want
	})
	t.Logf("%d devices in the slices after %s", want, took.Round(time.Millisecond))
}

// claim creates a claim for a number of GPUs, with extra fields of the request, and removes it when the test ends.
func (c *cluster) claim(t *testing.T, name string, count int, extra ...string) {
	t.Helper()
	fields := strings.Join(append([]string{"deviceClassName: gpu.nvidia.com", fmt.Sprint("count: ", count)}, extra...), ", ")
	c.claimDevices(t, name, "requests: [{name: gpu, exactly: {"+fields+"}}]")
}

// claimDevices creates a claim with these fields of its devices, and removes it when the test ends.
func (c *cluster) claimDevices(t *testing.T, name, fields string) {
	t.Helper()
	manifest := fmt.Sprintf("{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: %s}, spec: {devices: {%s}}}", name, fields)
	if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.Kubectl(context.Background(), "delete", "resourceclaim", name, "--ignore-not-found", "--timeout", timeout.String()); err != nil {
			t.Error(err)
		}
	})
}

// claimTemplate creates a template of claims, and removes it when the test ends.
func (c *cluster) claimTemplate(t *testing.T, name string, count int) {
	t.Helper()
	manifest := fmt.Sprintf("{apiVersion: resource.k8s.io/v1, kind: ResourceClaimTemplate, metadata: {name: %s}, spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: %d}}]}}}}", name, count)
	if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.Kubectl(context.Background(), "delete", "resourceclaimtemplate", name); err != nil {
			t.Error(err)
		}
	})
}

// runWithClaim starts a pod that sleeps, and removes it when the test ends. Each of its containers, by default main,
// uses the claim.
func (c *cluster) runWithClaim(t *testing.T, pod, claim string, containers ...string) {
	t.Helper()
	c.startWithClaim(t, pod, claim, containers...)
	t.Cleanup(func() { c.remove(t, pod) })
}

// allocate creates a claim and allocates a GPU to it, as the scheduler does before it binds a pod.
func (c *cluster) allocate(t *testing.T, claim, uuid string) {
	t.Helper()
	c.claim(t, claim, 1)
	status := fmt.Sprintf(`{"status": {"allocation": {"devices": {"results": [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": %q, "device": %q}]}, "allocationTimestamp": "2026-01-01T00:00:00Z"}}}`,
		node.Name, strings.ToLower(uuid))
	c.kubectl(t, "patch", "resourceclaim", claim, "--subresource", "status", "--type", "merge", "--patch", status)
}

// freeGPU returns a GPU in the slices that none of the pods has.
func (c *cluster) freeGPU(t *testing.T, pods ...string) string {
	t.Helper()
	var held []string
	for _, pod := range pods {
		held = append(held, c.gpusOf(t, pod)...)
	}
	for _, uuid := range c.slices(t) {
		if !slices.Contains(held, uuid) {
			return uuid
		}
	}
	t.Fatalf("all GPUs are held: %v", held)
	return ""
}

// awaitStatus waits until the output of gpucdi status contains a text.
func (c *cluster) awaitStatus(t *testing.T, text string) {
	t.Helper()
	await(t, "status "+text, func() (string, bool) {
		out := c.status(t)
		return out, strings.Contains(out, text)
	})
}

// startWithClaim is like runWithClaim, but leaves the pod.
func (c *cluster) startWithClaim(t *testing.T, pod, claim string, containers ...string) {
	t.Helper()
	c.startClaiming(t, pod, "resourceClaimName: "+claim, fmt.Sprintf("env: [{name: %s, value: %s}]", sharedClaim, claim), containers...)
}

// startWithTemplate starts a pod that sleeps, with a claim from a template.
func (c *cluster) startWithTemplate(t *testing.T, pod, template string) {
	t.Helper()
	c.startClaiming(t, pod, "resourceClaimTemplateName: "+template, "")
}

func (c *cluster) startClaiming(t *testing.T, pod, claim, field string, containers ...string) {
	t.Helper()
	manifest := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
%s
  resourceClaims: [{name: gpu, %s}]
  containers:
`, pod, lean, claim)
	for _, name := range append(containers, "main")[:max(1, len(containers))] {
		manifest += fmt.Sprintf(`  - name: %s
    image: %s
    imagePullPolicy: Never
    command: %s
    resources: {claims: [{name: gpu}]}
    %s
`, name, images.DebianName, untilEnd, field)
	}
	if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
}

// claimSurvives disturbs the node between starts of a container, which sees the GPU of its claim each time.
func claimSurvives(t *testing.T, c *cluster) {
	c.claim(t, "kept", 1)
	c.runWithClaim(t, "stays", "kept")
	c.awaitPhase(t, "stays", "Running")
	gpus := c.gpusOf(t, "stays")
	if spec := c.spec(t, "stays"); len(gpus) != 1 || spec.Hooks != nil {
		t.Fatalf("the pod sees %v and has hooks %v, want one GPU and none", gpus, spec.Hooks)
	}
	for _, tc := range []struct {
		name    string
		disturb func()
	}{
		{"container restart", func() {}},
		{"kubelet restart", func() { c.restartKubelet(t) }},
		{"killed agent", func() { c.killAgent(t) }},
		{"emptied CDI directory", func() {
			spec := filepath.Join(cdiDir, "gpucdi.dev-gpu.json")
			c.runOnNode(t, "rm -rf "+cdiDir+"/*")
			await(t, "the CDI spec", func() (string, bool) { _, err := os.Stat(c.Box.Path(spec)); return fmt.Sprint(err), err == nil })
		}},
		{"driver upgrade", func() {
			if err := c.driver.Upgrade("590.10.01"); err != nil {
				t.Fatal(err)
			}
			c.awaitSpec(t, "590.10.01", true)
		}},
	} {
		tc.disturb()
		before := c.containerID(t, "stays")
		c.exitContainer(t, "stays")
		await(t, "a new container", func() (string, bool) {
			id := c.containerID(t, "stays")
			return id, id != before && id != ""
		})
		c.awaitPhase(t, "stays", "Running")
		if now := c.gpusOf(t, "stays"); !slices.Equal(now, gpus) {
			t.Errorf("%s: the next container sees %v, want %v", tc.name, now, gpus)
		}
	}
	c.awaitSlices(t, 8)
}

// killAgent kills the agent's process and waits until the agent's next container is ready.
func (c *cluster) killAgent(t *testing.T) {
	t.Helper()
	before := c.agentContainer(t)
	c.runOnNode(t, "pkill -9 -f '^[^ ]*gpucdi serve'")
	await(t, "another agent container", func() (string, bool) {
		id := c.agentContainer(t)
		return id, id != before && strings.HasSuffix(id, " true")
	})
}

// agentContainer returns the ID of the agent's container and whether it is ready: "ID true".
func (c *cluster) agentContainer(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "pods", "--namespace", "gpucdi", "-l", "app.kubernetes.io/name=gpucdi", "-o", "jsonpath={.items[0].status.containerStatuses[0].containerID} {.items[0].status.containerStatuses[0].ready}")
}

// claimsAndPods fills the node with claims and pods that request nvidia.com/gpu.
func claimsAndPods(t *testing.T, c *cluster) {
	c.claim(t, "one", 1)
	c.claim(t, "two", 2)
	c.claim(t, "three", 3)
	c.runWithClaim(t, "first", "one", "main", "side")
	c.runWithClaim(t, "second", "one")
	c.runWithClaim(t, "pair", "two")
	c.runWithClaim(t, "triple", "three")
	c.run(t, "unchanged", 2)
	used := map[string][]string{}
	for _, pod := range []string{"first", "second", "pair", "triple", "unchanged"} {
		c.awaitPhase(t, pod, "Running")
		used[pod] = c.gpusOf(t, pod)
	}
	if !slices.Equal(used["first"], used["second"]) {
		t.Errorf("two pods with one claim see %v and %v", used["first"], used["second"])
	}
	if side := c.kubectl(t, "exec", "first", "-c", "side", "--", "nvidia-smi", "-L"); !strings.Contains(side, used["first"][0]) {
		t.Errorf("the second container sees %s, want %v", side, used["first"])
	}
	all := slices.Concat(used["first"], used["pair"], used["triple"], used["unchanged"])
	slices.Sort(all)
	if len(all) != 8 || len(slices.Compact(all)) != 8 {
		t.Errorf("the pods see %v, want 8 different GPUs", used)
	}
	for _, want := range []string{"default/pair/main", "default/unchanged/main", "8 devices"} {
		c.awaitOutput(t, want, c.status)
	}
	c.awaitClaimMetric(t, "three", "triple", used["triple"][0], used["triple"][0])
	status := c.status(t)
	if strings.Contains(status, "not allocated") {
		t.Errorf("gpucdi status reports GPUs of claims as not allocated:\n%s", status)
	}
	c.run(t, "late", 1)
	await(t, "late to be unschedulable", func() (string, bool) {
		reason := c.kubectl(t, "get", "pod", "late", "-o", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].reason}`)
		return reason, reason == "Unschedulable"
	})
	c.remove(t, "pair")
	c.awaitPhase(t, "late", "Running")
	if got := c.gpusOf(t, "late"); len(got) != 1 || !slices.Contains(used["pair"], got[0]) {
		t.Errorf("pod late sees %v, want one of %v", got, used["pair"])
	}
	metrics := c.metrics(t)
	for _, want := range []string{"gpucdi_dra_prepare_duration_seconds_count", "gpucdi_dra_unprepare_duration_seconds_count", "gpucdi_dra_slice_writes_total"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no metric %s", want)
		}
	}
}

// awaitClaimMetric waits for the metric of a pod with a device of a claim.
func (c *cluster) awaitClaimMetric(t *testing.T, claim, pod, device, gpu string) {
	t.Helper()
	c.awaitOutput(t, fmt.Sprintf(`gpucdi_device_allocated{claim=%q,container="main",device=%q,gpu=%q,namespace="default",pod=%q`, claim, device, gpu, pod), c.metrics)
}

// forcedDelete deletes a pod without a grace period and immediately creates it again, while its container still runs: with
// the same claim, and with one that is generated for each pod.
func forcedDelete(t *testing.T, c *cluster) {
	if name, _ := c.runtime(t); name == "containerd" {
		c.watchDisjoint(t)
	}
	t.Cleanup(func() { c.remove(t, "again") })
	c.claim(t, "all", 8)
	c.startWithClaim(t, "again", "all")
	c.awaitPhase(t, "again", "Running")
	for again, lost := 0, 0; again < 3; {
		c.kubectl(t, "delete", "pod", "again", "--grace-period=0", "--force")
		start := time.Now()
		c.startWithClaim(t, "again", "all")
		if c.awaitRunningOrClaimLost(t, "again") {
			t.Logf("deleted by force: the same GPUs again after %s", time.Since(start).Round(time.Millisecond))
			again++
		} else if lost++; lost == 20 {
			t.Fatal("the kubelet has lost the claims of 20 pods")
		}
	}
	c.remove(t, "again")

	c.claimTemplate(t, "each", 8)
	c.startWithTemplate(t, "again", "each")
	c.awaitPhase(t, "again", "Running")
	for range 3 {
		c.kubectl(t, "delete", "pod", "again", "--grace-period=0", "--force")
		start := time.Now()
		c.startWithTemplate(t, "again", "each")
		c.awaitPhase(t, "again", "Running")
		t.Logf("deleted by force: the GPUs for another claim after %s", time.Since(start).Round(time.Millisecond))
		uid := c.kubectl(t, "get", "pod", "again", "-o", "jsonpath={.metadata.uid}")
		refused := c.kubectl(t, "get", "events", "--field-selector", "involvedObject.uid="+uid+",reason=FailedPrepareDynamicResources", "-o", "jsonpath={.items[*].message}")
		if refused != "" {
			t.Errorf("the pod did not wait for the GPUs: %s", refused)
		}
	}
}

// awaitRunningOrClaimLost waits until a pod runs. It returns false if kubelet 1.36 has lost the pod's claim. This
// happens if the kubelet unprepares the claim for the previous pod while it prepares the claim for this pod; see the
// troubleshooting of docs/dra.md.
func (c *cluster) awaitRunningOrClaimLost(t *testing.T, pod string) (running bool) {
	t.Helper()
	await(t, pod+" to run", func() (string, bool) {
		state := c.kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.phase} {.status.containerStatuses[*].state.waiting.message}")
		running = strings.HasPrefix(state, "Running")
		return state, running || strings.Contains(state, "unable to get claim info")
	})
	return running
}

// claimHealth raises an XID on the GPU of a claim.
func claimHealth(t *testing.T, c *cluster) {
	c.claim(t, "monitored", 1)
	c.runWithClaim(t, "watched", "monitored")
	c.awaitPhase(t, "watched", "Running")
	faulty := c.gpusOf(t, "watched")[0]
	health := func(t *testing.T) string { return c.resourceHealth(t, "watched") }
	c.setRecoveryAction(t, faulty, simdriver.RecoveryReset)
	if err := c.driver.RaiseXID(faulty, 48); err != nil {
		t.Fatal(err)
	}
	want := "gpu-" + strings.TrimPrefix(faulty, "GPU-") + " gpu.nvidia.com/xid=48:NoSchedule"
	c.awaitOutput(t, want, c.taints)
	c.awaitOutput(t, "XID 48", health)
	c.awaitEvent(t, "Warning", "GPUUnhealthy", faulty+") is unhealthy: XID 48")
	time.Sleep(6 * time.Second) // until a probe has read the recovery action
	c.setRecoveryAction(t, faulty, simdriver.RecoveryNone)
	await(t, "no taint", func() (string, bool) { now := c.taints(t); return now, now == "" })
	c.awaitOutput(t, `"Healthy"`, health)

	// A GPU that is lost stays in the slices while a claim has it.
	gone, err := c.driver.Remove(faulty)
	if err != nil {
		t.Fatal(err)
	}
	c.awaitOutput(t, "gpu-"+strings.TrimPrefix(faulty, "GPU-")+" gpu.nvidia.com/gpu-lost", c.taints)
	if got := len(c.slices(t)); got != 8 {
		t.Errorf("%d devices are in the slices while a claim has a lost GPU, want 8", got)
	}
	c.remove(t, "watched")
	c.awaitSlices(t, 7)
	if err := c.driver.Add(gone); err != nil {
		t.Fatal(err)
	}
	c.awaitSlices(t, 8)
}

// resourceHealth returns the health of the devices in the status of a pod's first container.
func (c *cluster) resourceHealth(t *testing.T, pod string) string {
	t.Helper()
	return c.kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.containerStatuses[0].allocatedResourcesStatus[*].resources[*]}")
}

// taints returns the taints in the slices: "gpu-… key=value:effect".
func (c *cluster) taints(t *testing.T) string {
	t.Helper()
	out := c.kubectl(t, "get", "resourceslices", "-o", "json")
	var list struct {
		Items []struct {
			Spec struct {
				Devices []struct {
					Name   string
					Taints []struct{ Key, Value, Effect string }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, s := range list.Items {
		for _, d := range s.Spec.Devices {
			for _, taint := range d.Taints {
				found = append(found, fmt.Sprintf("%s %s=%s:%s", d.Name, taint.Key, taint.Value, taint.Effect))
			}
		}
	}
	return strings.Join(found, ", ")
}

// slicesRestored deletes and changes the slices, restarts the kubelet, and adds a foreign slice.
func slicesRestored(t *testing.T, c *cluster) {
	before := c.slices(t)
	name := c.kubectl(t, "get", "resourceslices", "-o", "jsonpath={.items[0].metadata.name}")
	uids := func() string { return c.kubectl(t, "get", "resourceslices", "-o", "jsonpath={.items[*].metadata.uid}") }
	for _, tc := range []struct {
		name    string
		disturb func()
	}{
		{"deleted", func() { c.kubectl(t, "delete", "resourceslice", name) }},
		{"changed", func() {
			c.kubectl(t, "patch", "resourceslice", name, "--type", "json", "--patch", `[{"op": "remove", "path": "/spec/devices/0"}]`)
		}},
		{"kubelet restart", func() { // the kubelet deletes the slices of its node when it starts
			old := uids()
			c.restartKubelet(t)
			await(t, "new slices", func() (string, bool) { now := uids(); return now, now != "" && now != old })
		}},
	} {
		tc.disturb()
		took := await(t, "the slices", func() (string, bool) {
			now, err := c.readSlices(t)
			return fmt.Sprint(now, err), err == nil && slices.Equal(now, before)
		})
		t.Logf("%s: restored after %s", tc.name, took.Round(time.Millisecond))
	}
	c.awaitExec(t)
	foreign := fmt.Sprintf(`{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: foreign},
spec: {driver: gpu.nvidia.com, nodeName: %[1]s, pool: {name: other, generation: 1, resourceSliceCount: 1}, devices: [{name: x}]}}`, node.Name)
	if err := c.Apply(t.Context(), []byte(foreign)); err != nil {
		t.Fatal(err)
	}
	c.awaitOutput(t, "another program wrote ResourceSlices of this driver: foreign", c.status)
	c.kubectl(t, "delete", "resourceslice", "foreign")
	await(t, "no foreign slice", func() (string, bool) { s := c.status(t); return s, !strings.Contains(s, "foreign") })
}

// interruptAPIServer kills the API server, calls during, sleeps for away, and starts the API server again.
func (c *cluster) interruptAPIServer(t *testing.T, away time.Duration, during func()) {
	t.Helper()
	c.runOnNode(t, "pkill -9 -x kube-apiserver") // a graceful stop waits for watches
	during()
	time.Sleep(away)
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// apiServerOutage raises an XID on the GPU of a claim and removes another GPU while the API server is down. After its
// return, the taint, the status of the pod and the Event are those of the fault.
func apiServerOutage(t *testing.T, c *cluster) {
	var gone simdriver.GPU
	c.claim(t, "during", 1)
	c.runWithClaim(t, "affected", "during")
	c.awaitPhase(t, "affected", "Running")
	faulty := c.gpusOf(t, "affected")[0]
	free := c.freeGPU(t, "affected")
	c.interruptAPIServer(t, time.Minute, func() {
		c.setRecoveryAction(t, faulty, simdriver.RecoveryReset)
		if err := c.driver.RaiseXID(faulty, 95); err != nil { // no other case raises it
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // NVML is initialized again after a removal, which loses events not yet read
		var err error
		if gone, err = c.driver.Remove(free); err != nil {
			t.Fatal(err)
		}
	})
	returned := time.Now()
	c.awaitSlices(t, 7)
	c.awaitOutput(t, "gpu-"+strings.TrimPrefix(faulty, "GPU-")+" gpu.nvidia.com/xid=95:NoSchedule", c.taints)
	t.Logf("slices are correct %s after the API server is ready", time.Since(returned).Round(time.Millisecond))
	c.awaitOutput(t, "XID 95", func(t *testing.T) string { return c.resourceHealth(t, "affected") })
	if health := c.resourceHealth(t, "affected"); !strings.Contains(health, `"Unhealthy"`) {
		t.Errorf("the status of the pod has %s", health)
	}
	c.awaitEvent(t, "Warning", "GPUUnhealthy", "XID 95")
	c.setRecoveryAction(t, faulty, simdriver.RecoveryNone)
	if err := c.driver.Add(gone); err != nil {
		t.Fatal(err)
	}
	c.awaitSlices(t, 8)
	await(t, "no taint", func() (string, bool) { now := c.taints(t); return now, now == "" })
	if err := c.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// heldClaim allocates the GPU of a running pod to another claim, as a scheduler with stale data would.
func heldClaim(t *testing.T, c *cluster) {
	c.claim(t, "owner", 1)
	c.runWithClaim(t, "runs", "owner")
	c.awaitPhase(t, "runs", "Running")
	c.claim(t, "other", 1)
	allocation := c.kubectl(t, "get", "resourceclaim", "owner", "-o", "jsonpath={.status.allocation}")
	c.kubectl(t, "patch", "resourceclaim", "other", "--subresource", "status", "--type", "merge", "--patch", `{"status": {"allocation": `+allocation+`}}`)
	c.runWithClaim(t, "waits", "other")
	c.awaitOutput(t, "is prepared for claim default/owner of pod runs; waited 30s, the kubelet retries within 90s", func(t *testing.T) string {
		return c.kubectl(t, "get", "events", "--field-selector", "involvedObject.name=waits", "-o", "jsonpath={.items[*].message}")
	})
	c.awaitOutput(t, "ClaimNotPrepared", func(t *testing.T) string { return c.kubectl(t, "describe", "resourceclaim", "other") })
	if !strings.Contains(c.metrics(t), `gpucdi_dra_refusals_total{reason="held"}`) {
		t.Error("no metric for the refusal")
	}
	for claim, want := range map[string]string{"default/owner": "was prepared", "default/other": "is prepared for claim default/owner of pod runs"} {
		c.awaitOutput(t, want, func(t *testing.T) string { return c.gpucdi(t, "explain", claim) })
	}
	c.remove(t, "waits") // the kubelet retries only after a minute or more
}

// nvidiaManifests applies manifests in the form of those for NVIDIA's DRA driver: claim templates, selectors on its
// attributes and capacities, and the config of docs/dra.md, which sets the GPU's time slice.
func nvidiaManifests(t *testing.T, c *cluster) {
	config := blocksOf(t, draDocument, "Configure a claim's GPU", "yaml")[0]
	manifest := fmt.Sprintf(`apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: large-gpu}
spec:
  spec:
    devices:
      requests:
      - name: gpu
        exactly:
          deviceClassName: gpu.nvidia.com
          selectors:
          - cel: {expression: "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*h100.*$') && device.attributes['gpu.nvidia.com'].architecture == 'Hopper'"}
          - cel: {expression: "device.attributes['gpu.nvidia.com'].driverVersion.isGreaterThan(semver('500.0.0')) && device.attributes['gpu.nvidia.com'].cudaComputeCapability.isGreaterThan(semver('8.9.0'))"}
          - cel: {expression: "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('70Gi')) > 0"}
      %s
---
apiVersion: v1
kind: Pod
metadata: {name: selects}
spec:
  terminationGracePeriodSeconds: 1
  resourceClaims: [{name: gpu, resourceClaimTemplateName: large-gpu}]
  containers:
  - {name: main, image: %s, imagePullPolicy: Never, command: [sleep, infinity], resources: {claims: [{name: gpu, request: gpu}]}}
`, strings.ReplaceAll(strings.TrimSpace(config), "\n", "\n      "), images.DebianName)
	if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.remove(t, "selects")
		_, _ = c.Kubectl(context.Background(), "delete", "resourceclaimtemplate", "large-gpu")
	})
	c.awaitPhase(t, "selects", "Running")
	gpus := c.gpusOf(t, "selects")
	if len(gpus) != 1 {
		t.Fatalf("the pod sees %v, want one GPU", gpus)
	}
	c.checkTimeSlice(t, gpus[0], "3")
	if err := c.driver.Unload(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.timeSlice(gpus[0]); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("time slice without the driver: error %v", err)
	}
	if err := c.driver.Load(); err != nil {
		t.Fatal(err)
	}
	await(t, "the time slice to be restored", func() (string, bool) {
		got, _ := c.timeSlice(gpus[0])
		return got, got == "3"
	})
	c.awaitSlices(t, 8)
	c.remove(t, "selects")
	await(t, "the claim to be deleted", func() (string, bool) {
		claims := c.kubectl(t, "get", "resourceclaims", "-o", "name")
		return claims, claims == ""
	})
	c.checkTimeSlice(t, gpus[0], "0")
}

// timeSlice returns the time slice that nvidia-smi has set for a GPU: 0 is Default, 3 is Long.
func (c *cluster) timeSlice(uuid string) (string, error) {
	data, err := os.ReadFile(c.Box.Path("/dev/.timeslice-" + uuid))
	return string(data), err
}

func (c *cluster) checkTimeSlice(t *testing.T, uuid, want string) {
	t.Helper()
	if got, err := c.timeSlice(uuid); err != nil || got != want {
		t.Errorf("time slice %q, error %v; want %s", got, err, want)
	}
}

// documentedClaim runs the example of docs/dra.md.
func documentedClaim(t *testing.T, c *cluster) {
	c.runToCompletion(t, "with-claim", blocksOf(t, draDocument, "Request GPUs", "yaml")[0])
	c.kubectl(t, "delete", "resourceclaim", "one-gpu")
}

// claimedFeatures runs a pod with the claim of docs/features.md, one that requests the resource of a DeviceClass with
// the same config, and one without features. A claim with an unknown feature is refused.
func claimedFeatures(t *testing.T, c *cluster) {
	claim := blocksOf(t, "docs/features.md", "Give some pods more", "yaml")[1]
	class := `{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: render}, spec: {extendedResourceName: example.com/render,
selectors: [{cel: {expression: "device.driver == 'gpu.nvidia.com'"}}],
config: [{opaque: {driver: gpu.nvidia.com, parameters: {apiVersion: gpucdi.dev/v1, kind: DeviceConfig, features: [graphics]}}}]}}`
	unknown := strings.NewReplacer("gpu-with-graphics", "unknown", "[graphics]", "[opengl]").Replace(claim)
	requests := fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: requests}, spec: {terminationGracePeriodSeconds: 1, containers: [
{name: main, image: %s, imagePullPolicy: Never, command: [sleep, infinity], resources: {limits: {example.com/render: 1}}}]}}`, images.DebianName)
	for _, manifest := range []string{claim, class, unknown, requests} {
		if err := c.Apply(t.Context(), []byte(manifest)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		c.remove(t, "requests")
		_, _ = c.Kubectl(context.Background(), "delete", "deviceclass/render", "resourceclaim/gpu-with-graphics", "resourceclaim/unknown")
	})
	c.claim(t, "plain", 1)
	c.runWithClaim(t, "renders", "gpu-with-graphics")
	c.runWithClaim(t, "computes", "plain")
	c.runWithClaim(t, "refused", "unknown")
	for pod, graphics := range map[string]bool{"renders": true, "requests": true, "computes": false} {
		c.awaitPhase(t, pod, "Running")
		files := c.exec(t, pod, "ls /dev /usr/lib64")
		if strings.Contains(files, "dri\n") != graphics || strings.Contains(files, "libEGL_nvidia.so.0") != graphics || !strings.Contains(files, "libnvcuvid.so.1") {
			t.Errorf("pod %s, with graphics: %t, has\n%s", pod, graphics, files)
		}
	}
	c.awaitOutput(t, `unknown feature "opengl"`, func(t *testing.T) string {
		return c.kubectl(t, "get", "events", "--field-selector", "involvedObject.name=refused", "-o", "jsonpath={.items[*].message}")
	})
}

// claimedMIG allocates a MIG device to a claim, and repartitions its GPU.
func claimedMIG(t *testing.T, c *cluster) {
	c.configure(t, "allocation: {mode: dra}\nmig: {strategy: mixed}\n")
	partitioned := c.driver.State().GPUs[7].UUID
	if err := c.driver.Partition(partitioned, "3g.40gb", "1g.10gb", "1g.10gb"); err != nil {
		t.Fatal(err)
	}
	c.awaitSlices(t, 10)
	if slices.Contains(c.slices(t), partitioned) {
		t.Error("the slices have the partitioned GPU")
	}
	selects := func(claim, expression string) {
		t.Helper()
		c.claimDevices(t, claim, `requests: [{name: mig, exactly: {deviceClassName: mig.nvidia.com, selectors: [{cel: {expression: "`+expression+`"}}]}}]`)
	}
	selects("small", "device.attributes['gpu.nvidia.com'].profile == '3g.40gb'")
	selects("limited", "device.attributes['gpucdi.dev'].memoryIsolation == 'driver'") // MIG devices have hardware
	c.runWithClaim(t, "limited", "limited")
	c.startWithClaim(t, "part", "small")
	c.awaitPhase(t, "part", "Running")
	device := c.driver.State().GPUs[7].MIG[0].UUID
	if seen := c.gpusOf(t, "part"); len(seen) != 2 || seen[0] != partitioned || seen[1] != device {
		t.Errorf("the pod sees %v, want %s and %s", seen, partitioned, device)
	}
	c.awaitClaimMetric(t, "small", "part", device, partitioned)
	c.awaitOutput(t, device, c.status)
	c.awaitOutput(t, "cannot allocate all claims", func(t *testing.T) string { return c.kubectl(t, "describe", "pod", "limited") })
	c.remove(t, "part")
	c.remove(t, "limited")
	c.kubectl(t, "delete", "resourceclaim", "small")
	profileClass(t, c, "3g.40gb", partitioned, device)
	if err := c.driver.Partition(partitioned, slices.Repeat([]string{"1g.10gb"}, 7)...); err != nil {
		t.Fatal(err)
	}
	c.awaitSlices(t, 14)
	if err := c.driver.Unpartition(partitioned); err != nil {
		t.Fatal(err)
	}
	c.awaitSlices(t, 8)
	c.configure(t, draConfig)
}

// wrongDeviceNode replaces the device node of a GPU with that of another device. It does not just remove the
// device node, since NVML does not list a GPU without one.
func wrongDeviceNode(t *testing.T, c *cluster) {
	g := c.driver.State().GPUs[0]
	device := fmt.Sprintf("/dev/nvidia%d", g.Minor)
	c.runOnNode(t, "mv "+device+" /tmp/device; mknod "+device+" c 1 3")
	c.killAgent(t) // the next agent detects the wrong device node when it starts, a running one with its next probe
	c.awaitOutput(t, "gpu-"+strings.TrimPrefix(g.UUID, "GPU-")+" gpucdi.dev/device_node", c.taints)
	c.claim(t, "seven", 7)
	c.runWithClaim(t, "others", "seven")
	c.awaitPhase(t, "others", "Running")
	if gpus := c.gpusOf(t, "others"); slices.Contains(gpus, g.UUID) {
		t.Errorf("the pod sees %v, including the GPU with the wrong device node", gpus)
	}
	c.runOnNode(t, "mv /tmp/device "+device)
	await(t, "no taint", func() (string, bool) { now := c.taints(t); return now, now == "" })
}

// withoutDriver starts the agent before the driver is loaded.
func withoutDriver(t *testing.T, c *cluster) {
	if err := c.driver.Unload(); err != nil {
		t.Fatal(err)
	}
	c.runOnNode(t, "rm -rf /run/gpucdi/*")
	c.killAgent(t)
	c.awaitSlices(t, 0)
	if count := c.kubectl(t, "get", "resourceslices", "-o", "name"); strings.Count(count, "/") != 1 {
		t.Errorf("slices %s, want an empty one", count)
	}
	if err := c.driver.Load(); err != nil {
		t.Fatal(err)
	}
	c.awaitSlices(t, 8)
}

// agentPolicies uses the agent's token to write slices and Events of another node, which is denied, and of the agent's
// node.
func agentPolicies(t *testing.T, c *cluster) {
	pod := c.agentPod(t)
	uid := c.kubectl(t, "get", "pod", "--namespace", "gpucdi", pod, "-o", "jsonpath={.metadata.uid}")
	token := c.kubectl(t, "create", "token", "--namespace", "gpucdi", "gpucdi", "--bound-object-kind", "Pod", "--bound-object-name", pod, "--bound-object-uid", uid)
	asAgent := func(manifest string, args ...string) (string, error) {
		cmd := c.Box.Command(t.Context(), "kubectl", append([]string{"--token", token, "--kubeconfig", "/dev/null", "--server", "https://127.0.0.1", "--insecure-skip-tls-verify"}, args...)...)
		cmd.Stdin = strings.NewReader(manifest)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	write := func(verb, manifest string) (string, error) { return asAgent(manifest, verb, "-f", "-") }
	denied := func(verb, manifest, want string) {
		t.Helper()
		if out, err := write(verb, manifest); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s %s: %v, %s", verb, manifest, err, out)
		}
	}
	slice := func(nodeName string) string {
		return fmt.Sprintf(`{apiVersion: resource.k8s.io/v1, kind: ResourceSlice, metadata: {name: forged-%[1]s},
spec: {driver: example.com, nodeName: %[1]s, pool: {name: forged, generation: 1, resourceSliceCount: 1}, devices: [{name: x}]}}`, nodeName)
	}
	const ofOtherNode = `the agent of node "box" must not write a ResourceSlice of node "other"`
	denied("create", slice("other"), ofOtherNode)
	if err := c.Apply(t.Context(), []byte(slice("other"))); err != nil {
		t.Fatal(err)
	}
	denied("replace", slice("other"), ofOtherNode)
	denied("delete", slice("other"), ofOtherNode)
	c.kubectl(t, "delete", "resourceslice", "forged-other")
	for _, verb := range []string{"create", "delete"} {
		if out, err := write(verb, slice(node.Name)); err != nil {
			t.Errorf("%s a slice of the agent's node: %v, %s", verb, err, out)
		}
	}

	event := func(namespace, reporter, nodeName, kind, name string) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: Event, metadata: {name: forged, namespace: %[1]s}, reportingComponent: %s, reportingInstance: %s,
involvedObject: {kind: %s, namespace: %[1]s, name: %[5]s}}`, namespace, reporter, nodeName, kind, name)
	}
	const ofOtherReporter = "must not write an Event of another reporter"
	denied("create", event("default", "gpucdi", "other", "Node", node.Name), ofOtherReporter)
	denied("create", event("default", "kubelet", node.Name, "Node", node.Name), ofOtherReporter)
	denied("create", event("default", "gpucdi", node.Name, "Node", "other"), "must not write an Event about this Node")
	denied("create", event("kube-system", "gpucdi", node.Name, "Pod", "x"), "must not write an Event about this Pod")
	if out, err := write("create", event("kube-system", "gpucdi", node.Name, "ResourceClaim", "x")); err != nil {
		t.Errorf("creating an Event of a claim: %v, %s", err, out)
	}
	c.kubectl(t, "delete", "event", "--namespace", "kube-system", "forged")
	for reporter, want := range map[string]string{"kubelet": ofOtherReporter, "gpucdi": ""} {
		if err := c.Apply(t.Context(), []byte(event("default", reporter, node.Name, "Node", node.Name))); err != nil {
			t.Fatal(err)
		}
		out, err := asAgent(event("default", "gpucdi", node.Name, "Node", node.Name), "apply", "--server-side", "--force-conflicts", "-f", "-")
		if (err != nil) != (want != "") || !strings.Contains(out, want) {
			t.Errorf("updating an Event of %s: %v, %s", reporter, err, out)
		}
		c.kubectl(t, "delete", "event", "forged")
	}
}

// claimsOnOtherRuntimes moves a node to DRA and back while a pod has a claim, with a runtime that TestDRA does not
// cover. Pods are deleted by force, a container restarts, and Helm refuses to uninstall the chart. Pods that request
// nvidia.com/gpu through DRA are not tested, since they require Kubernetes 1.36, and TestContainerd17 has 1.34.
func claimsOnOtherRuntimes(t *testing.T, c *cluster) {
	c.enableDRA(t)
	c.doc(t, "Move a node to DRA")
	c.awaitSlices(t, 8)
	t.Run("forced delete", func(t *testing.T) { forcedDelete(t, c) })
	if name, version := c.runtime(t); name == "containerd" && strings.HasPrefix(version, "1.7.") {
		t.Run("CDI disabled", c.claimWithoutCDI)
		t.Run("API server without taints", c.faultWithoutTaints)
	} else {
		t.Run("part of a GPU", func(t *testing.T) { onePart(t, c) })
	}
	c.claim(t, "kept", 2)
	c.runWithClaim(t, "claimed", "kept")
	c.awaitPhase(t, "claimed", "Running")
	gpus, before := c.gpusOf(t, "claimed"), c.containerID(t, "claimed")
	if spec := c.spec(t, "claimed"); len(gpus) != 2 || spec.Hooks != nil {
		t.Fatalf("the pod sees %v and has hooks %v, want two GPUs and none", gpus, spec.Hooks)
	}
	out := c.sh(t, "if helm uninstall gpucdi --namespace gpucdi --wait 2>&1; then echo uninstalled; fi")
	if !strings.Contains(out, "kept") || !strings.Contains(out, "claims in use: 1") || strings.Contains(out, "uninstalled") {
		t.Fatalf("helm uninstall prints\n%s", out)
	}
	// Keep gpucdi after the refused uninstall, as docs/dra.md describes.
	c.sh(t, `revision=$(helm history gpucdi --namespace gpucdi --max 1 --output json | grep -o '"revision":[0-9]*' | cut -d : -f 2)
helm rollback gpucdi "$revision" --namespace gpucdi
kubectl delete job --namespace gpucdi gpucdi-claims`)
	c.exitContainer(t, "claimed")
	await(t, "a new container", func() (string, bool) {
		id := c.containerID(t, "claimed")
		return id, id != before && id != ""
	})
	c.awaitPhase(t, "claimed", "Running")
	if now := c.gpusOf(t, "claimed"); !slices.Equal(now, gpus) {
		t.Errorf("the next container sees %v, want %v", now, gpus)
	}
	c.doc(t, "Move a node back")
	c.awaitGPUs(t, "6")
	c.remove(t, "claimed")
	c.awaitGPUs(t, "8")
	c.awaitSlices(t, 0)
	c.doc(t, "Disable DRA")
	c.awaitRollout(t)
	if left := c.kubectl(t, "get", "deviceclasses,validatingadmissionpolicies,clusterroles", "-l", "app.kubernetes.io/name=gpucdi", "-o", "name"); strings.Contains(left, "-dra") || strings.Contains(left, "nvidia.com") {
		t.Errorf("objects of DRA are left: %s", left)
	}
}

// faultWithoutTaints makes a GPU fail while the API server does not store the taints of devices, as by default before
// Kubernetes 1.36. The GPU leaves the slices until it has recovered.
func (c *cluster) faultWithoutTaints(t *testing.T) {
	faulty := c.driver.State().GPUs[6].UUID
	c.setRecoveryAction(t, faulty, simdriver.RecoveryReset)
	if err := c.driver.RaiseXID(faulty, 48); err != nil {
		t.Fatal(err)
	}
	c.awaitSlices(t, 7)
	if slices := c.kubectl(t, "get", "resourceslices", "-o", "yaml"); strings.Contains(slices, strings.TrimPrefix(faulty, "GPU-")) {
		t.Errorf("the GPU with a fault is in the slices:\n%s", slices)
	}
	c.awaitStatus(t, "the API server does not store devices[].taints")
	time.Sleep(6 * time.Second) // until a probe has read the recovery action; otherwise recovery takes the quiet period
	c.setRecoveryAction(t, faulty, simdriver.RecoveryNone)
	c.awaitSlices(t, 8)
}

// checkExtendedClaim checks that the GPUs that a pod sees are those of the claim that the scheduler has created for the
// pod's extended resources.
func (c *cluster) checkExtendedClaim(t *testing.T, pod string) {
	t.Helper()
	claim := c.kubectl(t, "get", "pod", pod, "-o", "jsonpath={.status.extendedResourceClaimStatus.resourceClaimName}")
	if claim == "" {
		t.Fatalf("pod %s has no claim for its extended resources", pod)
	}
	devices := strings.Fields(c.kubectl(t, "get", "resourceclaim", claim, "-o", "jsonpath={.status.allocation.devices.results[*].device}"))
	var seen []string
	for _, uuid := range c.gpusOf(t, pod) {
		seen = append(seen, strings.ToLower(uuid))
	}
	slices.Sort(devices)
	slices.Sort(seen)
	if !slices.Equal(devices, seen) {
		t.Errorf("claim %s has %v, but pod %s sees %v", claim, devices, pod, seen)
	}
}

// migration moves the node back and forth while pods hold GPUs. No two containers see the same GPU at any time.
func migration(t *testing.T, c *cluster) {
	c.watchDisjoint(t)
	c.doc(t, "Move a node back")
	c.awaitGPUs(t, "8")
	c.awaitSlices(t, 0)
	var held, containers []string
	for _, pod := range []string{"held-0", "held-1", "held-2"} {
		c.run(t, pod, 1)
		c.awaitPhase(t, pod, "Running")
		held = append(held, c.onlyGPUOf(t, pod))
		containers = append(containers, c.containerID(t, pod))
	}
	const preview = "if allocation.mode changed, 5 would move immediately, and 3 when these pods end: default/held-0, default/held-1, default/held-2"
	if out := c.doctor(t); !strings.Contains(out, preview) {
		t.Errorf("the doctor does not preview the move:\n%s", out)
	}
	c.doc(t, "Move a node to DRA")
	c.awaitSlices(t, 5)
	c.awaitGPUs(t, "0")
	c.restartKubelet(t)
	for i, want := range held {
		pod := fmt.Sprint("held-", i)
		if now := c.onlyGPUOf(t, pod); now != want {
			t.Errorf("after a kubelet restart pod %s sees %s, want %s", pod, now, want)
		}
		if now := c.containerID(t, pod); now != containers[i] {
			t.Errorf("after a kubelet restart the container of pod %s is %s, was %s", pod, now, containers[i])
		}
	}
	c.awaitSlices(t, 5)

	c.claim(t, "one", 1)
	c.runWithClaim(t, "claimed", "one")
	c.run(t, "unchanged", 2)
	c.awaitPhase(t, "claimed", "Running")
	c.awaitPhase(t, "unchanged", "Running")
	c.checkExtendedClaim(t, "unchanged")
	used := slices.Concat(held, c.gpusOf(t, "claimed"), c.gpusOf(t, "unchanged"))
	slices.Sort(used)
	if len(used) != 6 || len(slices.Compact(used)) != 6 {
		t.Errorf("pods see GPUs %v, want 6 different ones", used)
	}
	c.remove(t, "held-0")
	c.awaitSlices(t, 6)
	c.killAgent(t)
	c.remove(t, "held-1")
	c.remove(t, "held-2")
	c.awaitSlices(t, 8)
	c.awaitEvent(t, "Normal", "GPUMoved", "now allocated through gpu.nvidia.com")

	reserved := c.freeGPU(t, "claimed", "unchanged")
	c.allocate(t, "reserved", reserved)
	c.doc(t, "Move a node back")
	c.interruptAPIServer(t, 10*time.Second, func() {}) // in the middle of the move
	// Without the GPU of claim reserved, although that claim is not prepared.
	c.awaitGPUs(t, "4")
	c.awaitStatus(t, "waits for claim default/reserved")
	c.kubectl(t, "delete", "resourceclaim", "reserved")
	c.awaitGPUs(t, "5")
	c.awaitEvent(t, "Normal", "GPUMoved", reserved+") is now allocated through nvidia.com/gpu")
	claimed, unchanged := c.gpusOf(t, "claimed"), c.gpusOf(t, "unchanged")
	c.restartKubelet(t)
	if now := c.gpusOf(t, "claimed"); !slices.Equal(now, claimed) {
		t.Errorf("after a kubelet restart pod claimed sees %v, want %v", now, claimed)
	}
	if now := c.gpusOf(t, "unchanged"); !slices.Equal(now, unchanged) {
		t.Errorf("after a kubelet restart pod unchanged sees %v, want %v", now, unchanged)
	}
	c.awaitGPUs(t, "5")
	c.run(t, "returned", 1) // through a claim, if the scheduler still has the Node and the slices from before the outage
	c.awaitPhase(t, "returned", "Running")
	c.remove(t, "returned")
	c.awaitGPUs(t, "5")
	c.remove(t, "claimed")
	c.awaitGPUs(t, "6")
	c.killAgent(t)
	c.remove(t, "unchanged")
	c.awaitGPUs(t, "8")
	c.awaitSlices(t, 0)

	// A scheduler can allocate a GPU that has left the slices, if it did not receive the change.
	c.run(t, "holder", 1)
	c.awaitPhase(t, "holder", "Running")
	late := c.onlyGPUOf(t, "holder")
	c.allocate(t, "late", late)
	c.startWithClaim(t, "late", "late")
	c.awaitStatus(t, "waits until no pod holds "+late+" of nvidia.com/gpu")
	c.remove(t, "holder")
	c.awaitPhase(t, "late", "Running")
	if now := c.onlyGPUOf(t, "late"); now != late {
		t.Errorf("the claim has %s, but its pod sees %s", late, now)
	}
	c.run(t, "beside", 1)
	c.awaitPhase(t, "beside", "Running")
	if claims := c.kubectl(t, "get", "resourceclaims", "-o", "name"); strings.Contains(claims, "beside") {
		t.Errorf("the claims are %s, want none of pod beside, which gets a GPU of the device plugin", claims)
	}
	c.remove(t, "beside")
	c.remove(t, "late")
	c.kubectl(t, "delete", "resourceclaim", "late")
	c.awaitGPUs(t, "8")
	c.awaitSlices(t, 0)

	c.run(t, "during", 2)
	c.awaitPhase(t, "during", "Running")
	c.doc(t, "Move a node to DRA")
	c.interruptAPIServer(t, 10*time.Second, func() {}) // in the middle of the move
	c.awaitSlices(t, 6)
	c.remove(t, "during")
	c.awaitSlices(t, 8)
	c.awaitGPUs(t, "0")
}
