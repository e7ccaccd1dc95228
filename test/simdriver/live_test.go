package simdriver_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestLostGPU(t *testing.T) {
	d := install(t, simdriver.PCIe4())
	g := d.State().GPUs
	p := startProbe(t, d)
	p.open(4)

	must(t, d.Lose(g[1].UUID))
	p.want("uuid 1", "15")
	p.want("handle 1", "15")
	p.want("uuid 0", "0 "+g[0].UUID)
	p.want("count", "0 4")

	must(t, d.Return(g[1].UUID))
	p.want("handle 1", "0")
	p.want("uuid 1", "0 "+g[1].UUID)
}

func TestHotPlug(t *testing.T) {
	root := t.TempDir()
	d := installAt(t, root, simdriver.PCIe4())
	g := d.State().GPUs
	pci := filepath.Join(root, "sys/bus/pci/devices/0000:18:00.0")
	p := startProbe(t, d)
	p.open(4)

	removed, err := d.Remove(g[1].UUID)
	must(t, err)
	p.want("count", "0 4")
	p.want("uuid 1", "15")
	if exists(filepath.Join(root, "dev/nvidia1")) || exists(pci) {
		t.Error("device node or PCI device of a removed GPU exists")
	}
	p.want("shutdown", "0")
	p.open(3)
	p.want("uuid 1", "0 "+g[2].UUID)
	p.want("minor 1", "0 2")

	must(t, d.Add(removed))
	p.want("count", "0 3")
	p.want("shutdown", "0")
	p.open(4)
	p.want("uuid 1", "0 "+g[1].UUID)
	if !exists(filepath.Join(root, "dev/nvidia1")) || !exists(pci) {
		t.Error("device node or PCI device of an added GPU is missing")
	}
}

func TestEvents(t *testing.T) {
	d := install(t, simdriver.PCIe4())
	g := d.State().GPUs
	must(t, d.RaiseXID(g[0].UUID, 13)) // before the registration
	p := startProbe(t, d)
	p.open(4)
	p.want("set", "0")
	for i := range 3 {
		p.want(fmt.Sprintf("register %d", i), "0")
	}
	p.want("wait 1", "10")

	must(t, d.RaiseXID(g[3].UUID, 31)) // not registered
	must(t, d.RaiseXID(g[2].UUID, 48))
	must(t, d.RaiseXID(g[0].UUID, 63))
	p.want("wait 60000", "0 gpu=2 xid=48")
	p.want("wait 60000", "0 gpu=0 xid=63")
	p.want("wait 1", "10")

	p.send("wait 60000") // interrupted by the event
	must(t, d.RaiseXID(g[1].UUID, 94))
	if got := p.result(); got != "0 gpu=1 xid=94" {
		t.Errorf("wait: %q", got)
	}

	must(t, d.Lose(g[1].UUID))
	p.want("wait 60000", "0 gpu=1 xid=79")
	p.want("wait 60000", "15")
	must(t, d.Return(g[1].UUID))
	p.want("wait 1", "10")
	p.want("free", "0")
}

func TestFaults(t *testing.T) {
	d := install(t, simdriver.PCIe4())
	g := d.State().GPUs
	for _, tc := range []struct {
		name  string
		fault simdriver.Fault
		wants [][2]string
	}{
		{"one function of one GPU", simdriver.Fault{GPU: g[1].UUID, Func: "nvmlDeviceGetUUID", Return: 999},
			[][2]string{{"uuid 1", "999"}, {"minor 1", "0 1"}, {"uuid 0", "0 " + g[0].UUID}}},
		{"every function of one GPU", simdriver.Fault{GPU: g[1].UUID, Return: 15},
			[][2]string{{"uuid 1", "15"}, {"handle 1", "15"}, {"handle 0", "0"}, {"count", "0 4"}}},
		{"a handle", simdriver.Fault{GPU: g[2].UUID, Func: "nvmlDeviceGetHandleByIndex", Return: 4},
			[][2]string{{"handle 2", "4"}, {"handle 3", "0"}, {"uuid 2", "0 " + g[2].UUID}}},
		{"a function by an older name", simdriver.Fault{Func: "nvmlDeviceGetCount", Return: 999},
			[][2]string{{"count", "999"}, {"uuid 0", "0 " + g[0].UUID}}},
		{"waiting", simdriver.Fault{Func: "nvmlEventSetWait_v2", Return: 15},
			[][2]string{{"set", "0"}, {"wait 60000", "15"}}},
		{"another UUID", simdriver.Fault{GPU: g[1].UUID, Func: "nvmlDeviceGetUUID", Answers: true, Answer: "../x"},
			[][2]string{{"uuid 1", "0 ../x"}, {"uuid 0", "0 " + g[0].UUID}, {"minor 1", "0 1"}}},
		{"another minor number", simdriver.Fault{GPU: g[1].UUID, Func: "nvmlDeviceGetMinorNumber", Answers: true, Answer: "4294967295"},
			[][2]string{{"minor 1", "0 4294967295"}, {"minor 0", "0 0"}}},
		{"a crash", simdriver.Fault{Func: "nvmlDeviceGetMinorNumber", Crash: true},
			[][2]string{{"uuid 0", "0 " + g[0].UUID}, {"minor 0", "exited"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := startProbe(t, d)
			p.open(4)
			must(t, d.InjectFault(tc.fault))
			for _, w := range tc.wants {
				p.want(w[0], w[1])
			}
			must(t, d.ClearFaults())
			if tc.name != "a crash" {
				p.want("count", "0 4")
				p.want("uuid 1", "0 "+g[1].UUID)
			}
		})
	}
}

func TestHangEndsWithItsFault(t *testing.T) {
	d := install(t, simdriver.PCIe4())
	g := d.State().GPUs
	calls := filepath.Join(t.TempDir(), "calls")
	p := startProbe(t, d, d.Env(calls)...)
	p.open(4)
	must(t, d.InjectFault(simdriver.Fault{GPU: g[1].UUID, Func: "nvmlDeviceGetUUID", Hang: time.Hour}))
	p.send("uuid 1")
	for start := time.Now(); ; time.Sleep(time.Millisecond) { // calls are counted before they hang
		n, err := simdriver.Calls(calls)
		must(t, err)
		if n["nvmlDeviceGetUUID"] == 1 {
			break
		}
		if time.Since(start) > wait {
			t.Fatalf("the hanging call is not counted: %v", n)
		}
	}
	must(t, d.ClearFaults())
	if got, want := p.result(), "0 "+g[1].UUID; got != want {
		t.Errorf("after the hang: %q, want %q", got, want)
	}
}

func TestCallCounters(t *testing.T) {
	d := install(t, simdriver.PCIe4())
	calls := filepath.Join(t.TempDir(), "calls")
	if n, err := simdriver.Calls(calls); err != nil || len(n) != 0 {
		t.Fatalf("before the first call: %v, %v", n, err)
	}
	for range 2 {
		startProbe(t, d, d.Env(calls)...).open(4)
	}
	got, err := simdriver.Calls(calls)
	must(t, err)
	want := map[string]uint64{"nvmlInit_v2": 2, "nvmlDeviceGetCount_v2": 2, "nvmlDeviceGetHandleByIndex_v2": 8}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

func TestPartition(t *testing.T) {
	root := t.TempDir()
	d := installAt(t, root, simdriver.A100MIG())
	g := d.State().GPUs
	p := startProbe(t, d)
	p.open(8)
	p.want("mig 4 0", "6") // in MIG mode, not partitioned
	p.want("mig 0 6", "0 NVIDIA A100-SXM4-40GB MIG 1g.5gb")

	must(t, d.Partition(g[0].UUID, "4g.20gb", "1c.3g.20gb"))
	p.want("mig 0 0", "0 NVIDIA A100-SXM4-40GB MIG 4g.20gb")
	p.want("mig 0 1", "0 NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb")
	p.want("mig 0 2", "6")
	for path, want := range map[string]bool{
		"proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access": true,
		"proc/driver/nvidia/capabilities/gpu0/mig/gi7":            false,
		"dev/nvidia-caps/nvidia-cap12":                            true,  // gi1
		"dev/nvidia-caps/nvidia-cap13":                            true,  // gi1/ci0
		"dev/nvidia-caps/nvidia-cap66":                            false, // gi7
	} {
		if exists(filepath.Join(root, path)) != want {
			t.Errorf("%s exists: %t, want %t", path, !want, want)
		}
	}
	minors, err := os.ReadFile(filepath.Join(root, "proc/driver/nvidia-caps/mig-minors"))
	must(t, err)
	for _, line := range []string{"gpu0/gi1/access 12\n", "gpu0/gi1/ci0/access 13\n", "gpu1/gi0/access 138\n"} {
		if !strings.Contains(string(minors), line) {
			t.Errorf("mig-minors lacks %q", line)
		}
	}

	must(t, d.Unpartition(g[0].UUID))
	p.want("mig 0 0", "6")
	if err := d.Partition(g[0].UUID, "7g.40gb", "1g.5gb"); err == nil {
		t.Error("1g.5gb was placed on the same GPU as 7g.40gb")
	}
}

func TestUnloadAndUpgrade(t *testing.T) {
	root := t.TempDir()
	d := installAt(t, root, simdriver.PCIe4())
	old := startProbe(t, d)
	old.open(4)

	must(t, d.Unload())
	old.want("uuid 0", "9")
	startProbe(t, d).want("init", "9")
	if exists(filepath.Join(root, "dev/nvidia0")) || exists(filepath.Join(root, "proc/driver/nvidia")) {
		t.Error("device nodes or /proc entries of an unloaded driver exist")
	}
	must(t, d.Load())
	old.want("version", "0 580.95.05")

	was := d.LibraryPath()
	must(t, d.Upgrade("590.44.01"))
	old.want("version", "18")
	old.want("shutdown", "0")
	old.want("init", "18")
	fresh := startProbe(t, d)
	fresh.open(4)
	fresh.want("version", "0 590.44.01")
	if exists(was) {
		t.Errorf("%s exists after the upgrade", was)
	}
	must(t, d.RaiseXID(d.State().GPUs[0].UUID, 13))
}

func TestTopology(t *testing.T) {
	for _, tc := range []struct {
		profile simdriver.Profile
		wants   [][2]string
	}{
		{simdriver.PCIe4(), [][2]string{{"ancestor 0 1", "0 10"}, {"ancestor 0 2", "0 50"}, {"link 0 0", "3"}}},
		{simdriver.H100x8(), [][2]string{{"ancestor 0 3", "0 40"}, {"ancestor 0 4", "0 50"},
			{"link 0 0", "0 00000000:07:00.0"}, {"link 7 17", "0 00000000:0A:00.0"}, {"link 0 18", "2"}, {"numa 0", "3"}}},
		{simdriver.GTX1060x2(), [][2]string{{"ancestor 0 1", "0 30"}, {"link 0 0", "3"}, {"recovery 0", "3"}}},
		{simdriver.GPUs16(), [][2]string{{"ancestor 0 1", "0 10"}, {"ancestor 0 2", "0 20"}, {"ancestor 0 4", "0 40"}, {"ancestor 0 8", "0 50"}}},
	} {
		t.Run(tc.profile.Name, func(t *testing.T) {
			p := startProbe(t, install(t, tc.profile))
			p.open(len(tc.profile.GPUs))
			for _, w := range tc.wants {
				p.want(w[0], w[1])
			}
		})
	}
}

// A container has some of the device nodes, and the library mounted at its SONAME.
func TestContainer(t *testing.T) {
	root := t.TempDir()
	d := installAt(t, root, simdriver.A100MIG())
	g := d.State().GPUs
	dev, lib := t.TempDir(), t.TempDir()
	must(t, os.Mkdir(filepath.Join(dev, "nvidia-caps"), 0o755))
	for _, name := range []string{"nvidiactl", "nvidia-uvm", "nvidia2", "nvidia6",
		"nvidia-caps/nvidia-cap282", "nvidia-caps/nvidia-cap283"} { // gpu2/gi1 and gpu2/gi1/ci0
		must(t, os.Link(filepath.Join(root, "dev", name), filepath.Join(dev, name)))
	}
	for file, source := range map[string]string{"libnvidia-ml.so.1": d.LibraryPath(),
		"libcuda.so.1": filepath.Join(root, simdriver.LibraryDir, "libcuda.so.1")} {
		must(t, os.WriteFile(filepath.Join(lib, file), nil, 0o644))
		target := filepath.Join(lib, file)
		if out, err := exec.Command("mount", "--bind", "-o", "ro", source, target).CombinedOutput(); err != nil {
			t.Fatalf("mounting %s: %v\n%s", file, err, out)
		}
		t.Cleanup(func() {
			if out, err := exec.Command("umount", target).CombinedOutput(); err != nil {
				t.Errorf("unmounting %s: %v\n%s", file, err, out)
			}
		})
	}

	p := startProbe(t, d, "NVSIM_DEV="+dev, "LD_LIBRARY_PATH="+lib)
	p.open(2)
	p.want("uuid 0", "0 "+g[2].UUID)
	p.want("minor 1", "0 6")
	p.want("mig 0 0", "0 NVIDIA A100-SXM4-40GB MIG 3g.20gb")
	p.want("mig 0 1", "6")
	p.want("cuda", fmt.Sprintf("0 2 %s %s", g[2].MIG[0].UUID[4:12], g[6].UUID[4:12]))

	must(t, d.Lose(g[6].UUID))
	p.want("uuid 1", "15")
	must(t, os.Remove(filepath.Join(dev, "nvidiactl")))
	p.want("shutdown", "0")
	p.want("shutdown", "0") // for libcuda's nvmlInit
	p.want("init", "9")
}

// Readers never observe a half-written state.
func TestConcurrentReads(t *testing.T) {
	d := install(t, simdriver.GPUs16())
	g := d.State().GPUs
	var readers sync.WaitGroup
	var reads atomic.Int64
	written := make(chan struct{})
	for range 2 {
		p := startProbe(t, d)
		p.open(16)
		readers.Go(func() {
			for {
				select {
				case <-written:
					return
				default:
					p.want("uuid 15", "0 "+g[15].UUID)
					reads.Add(1)
				}
			}
		})
	}
	changes := 0
	for start := time.Now(); changes < 100 || reads.Load() < 100 && time.Since(start) < wait; changes++ {
		must(t, d.RaiseXID(g[changes%16].UUID, changes))
	}
	close(written)
	readers.Wait()
	if n := reads.Load(); n < 100 {
		t.Errorf("%d reads during %d changes, want at least 100", n, changes)
	}
}
