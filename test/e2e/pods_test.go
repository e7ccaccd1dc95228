package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func twoGPUs(t *testing.T, c *cluster) {
	c.run(t, "two", 2, "env: [{name: TRITON_LIBCUDA_PATH, value: /other}]")
	c.awaitPhase(t, "two", "Running")

	uuids := c.gpusOf(t, "two")
	if len(uuids) != 2 {
		t.Fatalf("nvidia-smi -L lists %v, want two", uuids)
	}
	var want []string
	for _, g := range c.driver.State().GPUs {
		if slices.Contains(uuids, g.UUID) {
			want = append(want, fmt.Sprintf("/dev/nvidia%d", g.Minor))
		}
	}
	want = append(want, "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")
	got := strings.Fields(c.exec(t, "two", "ls -d /dev/nvidia*"))
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("pod has device nodes %v, want %v", got, want)
	}

	const dlopen = `perl -MDynaLoader -e 'for (@ARGV) { DynaLoader::dl_load_file($_) or die DynaLoader::dl_error(), "\n" }; print "loaded"' `
	if out := c.exec(t, "two", dlopen+"libcuda.so.1 libcuda.so libnvidia-ml.so.1"); out != "loaded" {
		t.Errorf("dlopen: %s", out)
	}
	if out := c.exec(t, "two", dlopen+"libnvidia-nosuch.so.1 || true"); out == "loaded" {
		t.Error("dlopen succeeds for a missing library, so this check proves nothing")
	}

	if spec := c.spec(t, "two"); spec.Hooks != nil {
		t.Errorf("container has hooks %+v, want none", spec.Hooks)
	}
	checkVariable(t, c)
}

// checkVariable checks the value of a variable that both the manifest of pod "two" and the CDI spec set.
func checkVariable(t *testing.T, c *cluster) {
	t.Helper()
	want := "TRITON_LIBCUDA_PATH=/usr/lib64"
	if name, _ := c.runtime(t); name == "cri-o" {
		want = "TRITON_LIBCUDA_PATH=/other" // before https://github.com/cri-o/cri-o/pull/9292, the manifest takes precedence
	}
	if got := c.exec(t, "two", "tr '\\0' '\\n' < /proc/1/environ | grep ^TRITON_"); got != want {
		t.Errorf("environment of the pod has %q, want %q", got, want)
	}
}

// hasOnlyDriver checks that the container of a pod has no hook and nothing of gpucdi, except for mounts of the given
// destinations.
func (c *cluster) hasOnlyDriver(t *testing.T, pod string, destinations ...string) {
	t.Helper()
	spec := c.spec(t, pod)
	if spec.Hooks != nil {
		t.Errorf("the container of pod %s has hooks %+v", pod, spec.Hooks)
	}
	for _, m := range spec.Mounts {
		if strings.Contains(m.Source+m.Destination, "gpucdi") && !slices.Contains(destinations, m.Destination) {
			t.Errorf("the container of pod %s has the mount %+v", pod, m)
		}
	}
}

// spec returns the OCI spec of a pod's container.
func (c *cluster) spec(t *testing.T, pod string) *specs.Spec {
	t.Helper()
	spec, err := c.Spec(c.containerID(t, pod))
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func deniedGPU(t *testing.T, c *cluster) {
	// containerd grants CAP_MKNOD by default, CRI-O does not.
	c.run(t, "one", 1, "securityContext: {capabilities: {add: [MKNOD]}}")
	c.awaitPhase(t, "one", "Running")
	allocated := c.gpusOf(t, "one")
	for _, g := range c.driver.State().GPUs {
		// The simulated device nodes have no kernel driver: where opening is permitted, it fails with ENXIO.
		want := "Operation not permitted"
		if slices.Contains(allocated, g.UUID) {
			want = "No such device or address"
		}
		out := c.exec(t, "one", fmt.Sprintf("mknod /tmp/gpu%d c 195 %d && dd if=/tmp/gpu%d count=1 || true", g.Minor, g.Minor, g.Minor))
		if !strings.Contains(out, want) {
			t.Errorf("opening GPU %d (allocated %v): %s, want %s", g.Minor, allocated, out, want)
		}
	}
}

func noGPU(t *testing.T, c *cluster) {
	c.run(t, "none", 0, "env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]")
	c.awaitPhase(t, "none", "Running")
	if out := c.exec(t, "none", "ls /dev /usr/bin /usr/lib/x86_64-linux-gnu | grep -i -e nvidia -e libcuda || true"); out != "" {
		t.Errorf("pod without a GPU has driver files: %s", out)
	}
	for _, m := range c.spec(t, "none").Mounts {
		if strings.Contains(m.Source, "nvidia") {
			t.Errorf("pod without a GPU has the mount %+v", m)
		}
	}
}

func disjoint(t *testing.T, c *cluster) {
	c.run(t, "first", 4)
	c.run(t, "second", 4)
	c.awaitPhase(t, "first", "Running")
	c.awaitPhase(t, "second", "Running")
	all := append(c.gpusOf(t, "first"), c.gpusOf(t, "second")...)
	slices.Sort(all)
	if len(slices.Compact(all)) != 8 {
		t.Errorf("pods first and second share GPUs: %v", all)
	}

	c.run(t, "third", 1)
	await(t, "third to be unschedulable", func() (string, bool) {
		reason := c.kubectl(t, "get", "pod", "third", "-o", `jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}`)
		return reason, strings.Contains(reason, "Insufficient nvidia.com/gpu")
	})
	c.awaitPhase(t, "third", "Pending")
	freed := c.gpusOf(t, "first")
	c.remove(t, "first")
	c.awaitPhase(t, "third", "Running")
	if got := c.gpusOf(t, "third"); len(got) != 1 || !slices.Contains(freed, got[0]) {
		t.Errorf("pod third has GPUs %v, want one of the freed %v", got, freed)
	}
}

func containerRestart(t *testing.T, c *cluster) {
	c.run(t, "again", 2)
	c.awaitPhase(t, "again", "Running")
	before, gpus := c.containerID(t, "again"), c.gpusOf(t, "again")
	c.exitContainer(t, "again")
	await(t, "a new container", func() (string, bool) {
		id := c.containerID(t, "again")
		return id, id != before
	})
	c.awaitPhase(t, "again", "Running")
	if now := c.gpusOf(t, "again"); !slices.Equal(now, gpus) {
		t.Errorf("restarted container has GPUs %v, want %v", now, gpus)
	}
}
