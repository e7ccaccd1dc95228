package cdi_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/internal/host"
)

func TestMPSClient(t *testing.T) {
	specs, dir, root := t.TempDir(), t.TempDir(), host.NewRoot("/")
	for _, uid := range []string{"0ab-1", "0ab-2"} {
		for range 2 {
			if err := cdi.PutMPSClient(specs, root, uid, dir); err != nil {
				t.Fatal(err)
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(specs, "gpucdi.dev-claim-0ab-1.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"gpucdi.dev/claim"`, `"0ab-1"`, `"CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps"`, `"` + dir + `"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the spec lacks %s:\n%s", want, text)
		}
	}
	if got := cdi.ClaimDevice("0ab-1"); got != "gpucdi.dev/claim=0ab-1" {
		t.Errorf("device %s", got)
	}
	// Other files in the directory.
	for _, name := range []string{"gpucdi.dev-gpu.json", "gpucdi.dev-claim-x.yaml", ".gpucdi.dev-claim-y.json.123"} {
		if err := os.WriteFile(filepath.Join(specs, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := cdi.ClaimSpecs(specs); err != nil || !slices.Equal(got, []string{"0ab-1", "0ab-2"}) {
		t.Errorf("claims %v, error %v", got, err)
	}
	for range 2 {
		if err := cdi.RemoveClaim(specs, "0ab-1"); err != nil {
			t.Error(err)
		}
	}
	if got, err := cdi.ClaimSpecs(specs); err != nil || !slices.Equal(got, []string{"0ab-2"}) {
		t.Errorf("claims %v, error %v", got, err)
	}
	if got, err := cdi.ClaimSpecs(filepath.Join(specs, "missing")); err != nil || len(got) > 0 {
		t.Errorf("claims %v, error %v", got, err)
	}
	if err := cdi.PutMPSClient(specs, root, "0ab-3", filepath.Join(dir, "missing")); err == nil {
		t.Error("no error without the directory of the server")
	}
}
