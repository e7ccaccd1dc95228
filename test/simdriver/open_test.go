package simdriver_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

func open(t *testing.T, root string) *simdriver.Driver {
	t.Helper()
	d, err := simdriver.Open(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

func TestOpen(t *testing.T) {
	for _, profile := range []simdriver.Profile{simdriver.A100MIG(), simdriver.GPUs16(), simdriver.GTX1060x2()} {
		t.Run(profile.Name, func(t *testing.T) {
			root := t.TempDir()
			installed := installAt(t, root, profile)
			uuid := installed.State().GPUs[1].UUID
			must(t, installed.Update(func(s *simdriver.State) error {
				s.GPU(uuid).HostDriver = [2]string{"550.127.06", "r550_00"}
				s.Confidential = true
				return nil
			}))
			p := startProbe(t, installed)
			p.open(len(profile.GPUs))
			must(t, installed.Lose(uuid))
			must(t, installed.InjectFault(simdriver.Fault{GPU: uuid, Func: "nvmlDeviceGetUUID", Hang: time.Minute}))

			installed.Close() // no effect
			d := open(t, root)
			if got, want := d.State(), installed.State(); !reflect.DeepEqual(got, want) {
				t.Errorf("opened driver has the state\n%+v\nwant\n%+v", got, want)
			}
			must(t, d.ClearFaults())
			must(t, d.Return(uuid))
			p.want("uuid 1", "0 "+uuid)
		})
	}
}

func TestOpenConcurrently(t *testing.T) {
	root := t.TempDir()
	uuid := installAt(t, root, simdriver.PCIe4()).State().GPUs[0].UUID
	const n = 20
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			d, err := simdriver.Open(t.Context(), root)
			if err != nil {
				t.Error(err)
				return
			}
			defer d.Close()
			if err := d.RaiseXID(uuid, i); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if events := open(t, root).State().Events; len(events) != n {
		t.Errorf("%d concurrent changes resulted in the events %v", n, events)
	}
}

func TestOpenErrors(t *testing.T) {
	root := t.TempDir()
	if _, err := simdriver.Open(t.Context(), root); err == nil || !strings.Contains(err.Error(), "no simulated driver") {
		t.Errorf("empty root: %v", err)
	}
	installAt(t, root, simdriver.PCIe4())
	open(t, root)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := simdriver.Open(ctx, root); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("opened twice: %v", err)
	}
}

// upgraderRoot is an environment variable. If it is set to a root, this test binary upgrades the driver below it until
// killed.
const upgraderRoot = "SIMDRIVER_TEST_UPGRADE"

func TestMain(m *testing.M) {
	if root := os.Getenv(upgraderRoot); root != "" {
		upgradeForever(root)
	}
	status := m.Run()
	if probeDir != "" {
		os.RemoveAll(probeDir)
	}
	os.Exit(status)
}

func upgradeForever(root string) {
	for i := 0; ; i++ {
		d, err := simdriver.Open(context.Background(), root)
		if err == nil {
			fmt.Println("upgrading")
			err = d.Upgrade(fmt.Sprintf("590.44.%02d", i%90+1))
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		d.Close()
	}
}

// Open completes an upgrade that was interrupted at any point: nvidia-smi works, and one libnvidia-ml is left.
func TestKilledDuringUpgrade(t *testing.T) {
	root := t.TempDir()
	installAt(t, root, simdriver.PCIe4())
	for i := range 12 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), upgraderRoot+"="+root)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 7 * time.Millisecond)
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()

		d := open(t, root)
		version := d.State().Version
		if list := smi(t, d, "-L"); strings.Count(list, "(UUID: GPU-") != 4 {
			t.Fatalf("nvidia-smi -L after the kill:\n%s", list)
		}
		libraries, err := filepath.Glob(filepath.Join(root, simdriver.LibraryDir, "libnvidia-ml.so.*.*"))
		must(t, err)
		if len(libraries) != 1 || libraries[0] != d.LibraryPath() || !strings.HasSuffix(libraries[0], version) {
			t.Fatalf("libraries of version %s after the kill: %v", version, libraries)
		}
		d.Close()
	}
}
