package runtime

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/internal/host"
)

func FuzzParseContainerdConfig(f *testing.F) {
	f.Add("2.4.2", `{"enableCDI":true,"cdiSpecDirs":["/etc/cdi"]}`)
	f.Add("v1.7", `{"enableCDI":null,"cdiSpecDirs":[]}`)
	f.Add("", `[]`)
	f.Fuzz(func(t *testing.T, version, config string) {
		info, err := parseContainerdConfig(Info{Name: "containerd", Version: version}, config)
		if err == nil && len(info.SpecDirs) == 0 {
			t.Errorf("config %q of version %q: %+v", config, version, info)
		}
	})
}

func FuzzParseCRIOConfig(f *testing.F) {
	f.Add("[crio]\n[crio.runtime]\ncdi_spec_dirs = [\"/etc/cdi\"]\n")
	f.Add("[crio")
	f.Fuzz(func(t *testing.T, config string) {
		info, err := parseCRIOConfig(Info{Name: "cri-o"}, strings.NewReader(config))
		if err == nil && (len(info.SpecDirs) == 0 || !info.CDI) {
			t.Errorf("%q: %+v", config, info)
		}
	})
}

func FuzzFieldNames(f *testing.F) {
	f.Add(`{"config":{"CDI_devices":[{"name":"gpucdi.dev/gpu=GPU-1"}]}}`)
	f.Add(`{"config":{"CDI_devices":[null,{}]}}`)
	f.Add(`{"config":null}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, info string) {
		names, err := fieldNames(info)
		if err != nil && names != nil {
			t.Errorf("%q: %q and %v", info, names, err)
		}
	})
}

// Whatever the kubelet's configuration file contains, the socket is within the node's root.
func FuzzParseEndpoint(f *testing.F) {
	f.Add("containerRuntimeEndpoint: unix:///run/custom.sock")
	f.Add("containerRuntimeEndpoint: ../outside")
	f.Add("containerRuntimeEndpoint: unix:///link")
	f.Add("containerRuntimeEndpoint: [1]")
	dir := f.TempDir()
	root, outside := filepath.Join(dir, "root"), filepath.Join(dir, "outside")
	if err := errors.Join(os.Mkdir(root, 0o750), os.Mkdir(outside, 0o750), os.Symlink(outside, filepath.Join(root, "link"))); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		conn, local, err := dial(host.NewRoot(root), parseEndpoint([]byte(text)))
		if err != nil {
			return
		}
		defer conn.Close()
		if actual, err := filepath.EvalSymlinks(local); err == nil && actual != root && !strings.HasPrefix(actual, root+"/") {
			t.Errorf("%q leads to %s", text, actual)
		}
	})
}
