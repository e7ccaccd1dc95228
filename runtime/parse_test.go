package runtime

import (
	"slices"
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

// Whatever the kubelet's configuration file contains, the socket path resolves within the node's root.
func FuzzParseEndpoint(f *testing.F) {
	f.Add("containerRuntimeEndpoint: unix:///run/custom.sock")
	f.Add("containerRuntimeEndpoint: ../../../etc/secret")
	f.Add("containerRuntimeEndpoint: [1]")
	node := host.NewRoot(f.TempDir())
	f.Fuzz(func(t *testing.T, text string) {
		socket := parseEndpoint([]byte(text))
		inside, err := node.Resolve(socket)
		if err == nil && slices.Contains(strings.Split(inside, "/"), "..") {
			t.Errorf("%q resolves to %s", text, inside)
		}
	})
}
