package node_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/box"
	"github.com/gpucdi/gpucdi/test/node"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

// TestNode checks the properties of a node that the tests of the agent rely on.
func TestNode(t *testing.T) {
	if err := tools.InstallPackages(t.Context()); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "node")
	n, err := node.Start(t.Context(), node.Config{
		Box: box.Config{Dir: dir},
		Stage: func(name string) func() {
			start := time.Now()
			return func() { t.Logf("%s: %s", name, time.Since(start).Round(time.Millisecond)) }
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	rig := &rig{n}
	t.Run("a pod runs and has a log", rig.pod)
	t.Run("a pod reaches the API server with its service account", rig.serviceAccount)
	t.Run("DaemonSets and Jobs create pods", rig.controllers)
	t.Run("the container runtime is stock", rig.stockRuntime)
	t.Run("pods survive a restart of the kubelet", rig.kubeletRestart)
	t.Run("the kubelet's sockets are in the default directories", rig.kubeletSockets)
	t.Run("kubectl runs outside of the box", rig.kubeconfig)
	t.Run("calls of kubectl keep little memory", rig.kubectlMemory)
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("Close does not remove %s", dir)
	}
}

type rig struct{ *node.Node }

func (r *rig) apply(t *testing.T, manifest string) {
	t.Helper()
	if err := r.Apply(t.Context(), []byte(manifest)); err != nil {
		t.Fatal(err)
	}
}

// kubectlMemory checks how much a call keeps. System tests make thousands of calls in one process.
func (r *rig) kubectlMemory(t *testing.T) {
	heap := func() uint64 {
		var stats runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	r.kubectl(t, "get", "pods", "--namespace", "kube-system", "-o", "json")
	const calls, limit = 100, 50 << 10
	before := heap()
	for range calls {
		r.kubectl(t, "get", "nodes", "-o", "json")
		r.kubectl(t, "describe", "nodes")
	}
	kept := (int64(heap()) - int64(before)) / (2 * calls)
	t.Logf("a call keeps %d bytes", kept)
	if kept > limit {
		t.Errorf("want at most %d", limit)
	}
}

func (r *rig) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := r.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func (r *rig) pod(t *testing.T) {
	r.apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: hello}, spec: {restartPolicy: Never, containers: [
		{name: c, image: "debian:bookworm-slim", command: [sh, -c, "echo hello from $(hostname)"]}]}}`)
	r.kubectl(t, "wait", "pod/hello", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
	if got := r.kubectl(t, "logs", "hello"); got != "hello from hello" {
		t.Errorf("log of pod hello is %q", got)
	}
}

// serviceAccount runs the node's kubectl in a pod. There kubectl uses the in-cluster configuration.
func (r *rig) serviceAccount(t *testing.T) {
	r.apply(t, `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: viewer},
		roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view},
		subjects: [{kind: ServiceAccount, namespace: default, name: default}]}`)
	r.apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: client}, spec: {
		restartPolicy: Never, volumes: [{name: p, hostPath: {path: /opt/programs}}], containers: [{
		name: c, image: "debian:bookworm-slim", volumeMounts: [{name: p, mountPath: /p}],
		command: [sh, -c, "/p/kube-*/kubectl get pod client -o name && /p/kube-*/kubectl auth can-i delete pods; true"]}]}}`)
	r.kubectl(t, "wait", "pod/client", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
	if got := r.kubectl(t, "logs", "client"); got != "pod/client\nno" {
		t.Errorf("log of pod client is %q", got)
	}
}

func (r *rig) controllers(t *testing.T) {
	r.apply(t, `{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: daemon}, spec: {
		selector: {matchLabels: {app: daemon}}, template: {metadata: {labels: {app: daemon}}, spec: {
		terminationGracePeriodSeconds: 0,
		containers: [{name: c, image: "debian:bookworm-slim", command: [sleep, infinity]}]}}}}`)
	r.apply(t, `{apiVersion: batch/v1, kind: Job, metadata: {name: job}, spec: {template: {spec: {restartPolicy: Never,
		containers: [{name: c, image: "debian:bookworm-slim", command: ["true"]}]}}}}`)
	r.kubectl(t, "rollout", "status", "daemonset/daemon", "--timeout=60s")
	r.kubectl(t, "wait", "job/job", "--for=condition=Complete", "--timeout=60s")
	r.kubectl(t, "delete", "daemonset/daemon", "--wait", "--timeout=60s")
}

func (r *rig) stockRuntime(t *testing.T) {
	out, err := r.Box.Command(t.Context(), "containerd", "config", "dump").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"default_runtime_name = 'runc'", "cdi_spec_dirs = ['/etc/cdi', '/var/run/cdi']"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("containerd's configuration does not contain %s", want)
		}
	}
	if got := r.kubectl(t, "get", "runtimeclasses", "-o", "name"); got != "" {
		t.Errorf("cluster has the RuntimeClasses %s, want none", got)
	}
}

func (r *rig) kubeletRestart(t *testing.T) {
	r.apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: stays}, spec: {terminationGracePeriodSeconds: 0, containers: [
		{name: c, image: "debian:bookworm-slim", command: [sleep, infinity]}]}}`)
	r.kubectl(t, "wait", "pod/stays", "--for=condition=Ready", "--timeout=60s")
	const id = "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}"
	before := r.kubectl(t, "get", "pod", "stays", "-o", id)
	if err := r.RestartKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The kubelet is healthy before it has restored its running pods.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_, err := r.Kubectl(t.Context(), "exec", "stays", "--", "true")
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if after := r.kubectl(t, "get", "pod", "stays", "-o", id); after != before {
		t.Errorf("container is %s after the restart, want %s", after, before)
	}
}

func (r *rig) kubeletSockets(t *testing.T) {
	for _, name := range []string{"device-plugins/kubelet.sock", "pod-resources/kubelet.sock"} {
		info, err := os.Stat(r.Box.Path(filepath.Join("/var/lib/kubelet", name)))
		if err != nil || info.Mode()&os.ModeSocket == 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func (r *rig) kubeconfig(t *testing.T) {
	programs, err := tools.Build(t.Context(), tools.Kube)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"get", "nodes", "-o", "name"}, {"exec", "stays", "--", "echo", "node/" + node.Name}} {
		out, err := exec.CommandContext(t.Context(), filepath.Join(programs, "kubectl"),
			append([]string{"--kubeconfig", r.Kubeconfig()}, args...)...).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != "node/"+node.Name {
			t.Errorf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
