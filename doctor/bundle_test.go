package doctor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/internal/host"
)

// unpack returns the content of the files of a bundle, by name.
func unpack(t *testing.T, data []byte) map[string]string {
	t.Helper()
	compressed, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	files, archive := map[string]string{}, tar.NewReader(compressed)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if header.Mode != 0o600 || !strings.HasPrefix(header.Name, "gpucdi/") {
			t.Errorf("%s has mode %o, want gpucdi/… with mode 600", header.Name, header.Mode)
		}
		files[strings.TrimPrefix(header.Name, "gpucdi/")] = string(text)
	}
}

const checkpoint = `{"Data":{"PodDeviceEntries":[
	{"PodUID":"pod","ContainerName":"main","ResourceName":"nvidia.com/gpu","DeviceIDs":{"0":["GPU-a"]},"AllocResp":"CgZTRUNSRVQ="},
	{"PodUID":"pod","ContainerName":"main","ResourceName":"example.com/nic","DeviceIDs":{"0":["other-nic"]},"AllocResp":""}],
	"RegisteredDevices":{"nvidia.com/gpu":["GPU-a","GPU-b"],"example.com/nic":["other-nic"]}},"Checksum":1}`

// newBundleNode returns a node with an agent and the files that a bundle collects, but without a driver.
func newBundleNode(t *testing.T) Node {
	t.Helper()
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			_, _ = io.WriteString(w, "gpucdi_build_info 1\n")
			return
		}
		_, _ = io.WriteString(w, `{"name":"node","version":"v1"}`)
	}))
	t.Cleanup(agent.Close)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"config.yaml": "apiVersion: gpucdi.dev/v1\n", "cdi/gpucdi.dev-gpu.json": `{"kind":"gpucdi.dev/gpu"}`, "cdi/other.json": "SECRET",
		"kubelet/device-plugins/kubelet_internal_checkpoint": checkpoint, "etc/os-release": "ID=x\nPRETTY_NAME=\"X 1\"\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Node{
		Root: host.NewRoot(dir), KubeletDir: filepath.Join(dir, "kubelet"), CDIDir: filepath.Join(dir, "cdi"), Version: "v2",
		ConfigFile: filepath.Join(dir, "config.yaml"), Address: strings.TrimPrefix(agent.URL, "http://"),
	}
}

func TestBundle(t *testing.T) {
	t.Setenv("SOME_VARIABLE", "SECRET")
	var out bytes.Buffer
	if err := Bundle(t.Context(), newBundleNode(t), &out); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, out.Bytes())
	for name, want := range map[string]string{
		"doctor.json": `"check": "kernel module"`, "status.json": `"name": "node"`, "metrics.txt": "gpucdi_build_info 1", "versions.json": `"os": "X 1"`,
		"config.yaml": "gpucdi.dev/v1", "cdi/gpucdi.dev-gpu.json": "gpucdi.dev/gpu", "checkpoint.json": `"device": "GPU-a"`,
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s lacks %s:\n%s", name, want, files[name])
		}
	}
	for _, name := range []string{"list.json", "runtime.json", "kernel.log"} {
		if !strings.Contains(files["errors.txt"], name+": ") {
			t.Errorf("errors.txt does not explain why %s is missing:\n%s", name, files["errors.txt"])
		}
	}
	for name, text := range files {
		if strings.Contains(text, "SECRET") || strings.Contains(text, "CgZTRUNSRVQ") || strings.Contains(text, "nic") {
			t.Errorf("%s contains data that no bug report needs:\n%s", name, text)
		}
	}
}

// The specs of claims do not displace those of GPUs.
func TestBundleOfManySpecs(t *testing.T) {
	n := newBundleNode(t)
	for i := range maxBundledSpecs + 1 {
		if err := os.WriteFile(filepath.Join(n.CDIDir, fmt.Sprintf("gpucdi.dev-claim-%d.json", i)), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := Bundle(t.Context(), n, &out); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, out.Bytes())
	if files["cdi/gpucdi.dev-gpu.json"] == "" || files["cdi/gpucdi.dev-claim-0.json"] == "" || !strings.Contains(files["errors.txt"], "more than") {
		t.Errorf("the bundle has %q", slices.Sorted(maps.Keys(files)))
	}
}

// Damaged and oversized files are listed in errors.txt; the bundle contains the others.
func TestBundleOfDamagedNode(t *testing.T) {
	n := newBundleNode(t)
	n.Address = "127.0.0.1:1"
	for name, size := range map[string]int64{"config.yaml": bundleFileLimit + 1, "cdi/gpucdi.dev-gpu.json": 1 << 40} {
		if err := os.Truncate(filepath.Join(filepath.Dir(n.ConfigFile), name), size); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(n.KubeletDir, "device-plugins/kubelet_internal_checkpoint"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Bundle(t.Context(), n, &out); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, out.Bytes())
	for _, name := range []string{"status.json", "metrics.txt", "config.yaml", "cdi/gpucdi.dev-gpu.json", "checkpoint.json"} {
		if _, found := files[name]; found || !strings.Contains(files["errors.txt"], name+": ") {
			t.Errorf("%s is not listed in errors.txt:\n%s", name, files["errors.txt"])
		}
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestBundleToFullDisk(t *testing.T) {
	if err := Bundle(t.Context(), newBundleNode(t), fullDisk{}); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("error %v", err)
	}
}

func TestDriverLine(t *testing.T) {
	for record, want := range map[string]string{
		"4,1024,5000000,-;NVRM: Xid (PCI:0000:18:00): 79\n SUBSYSTEM=pci\n": "[5000000 us] NVRM: Xid (PCI:0000:18:00): 79\n",
		"6,1,2,-;usb 1-1: new device\n DEVICE=Xid\n":                        "",
		"garbage NVRM": "", "1;NVRM": "", "": "",
	} {
		if got, ok := driverLine(record); got != want || ok != (want != "") {
			t.Errorf("%q: got %q, %v", record, got, ok)
		}
	}
}
