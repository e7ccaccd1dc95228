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
			if err := cdi.PutMPSClient(specs, root, cdi.ClaimKind, uid, dir); err != nil {
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
	if err := cdi.PutMPSClient(specs, root, cdi.ReplicaKind, "GPU-0::1", dir); err != nil {
		t.Fatal(err)
	}
	// Other files in the directory.
	for _, name := range []string{"gpucdi.dev-gpu.json", "gpucdi.dev-claim-x.yaml", ".gpucdi.dev-claim-y.json.123"} {
		if err := os.WriteFile(filepath.Join(specs, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := cdi.MPSClients(specs, cdi.ClaimKind); err != nil || !slices.Equal(got, []string{"0ab-1", "0ab-2"}) {
		t.Errorf("claims %v, error %v", got, err)
	}
	for range 2 {
		if err := cdi.RemoveMPSClient(specs, cdi.ClaimKind, "0ab-1"); err != nil {
			t.Error(err)
		}
	}
	if got, err := cdi.MPSClients(specs, cdi.ClaimKind); err != nil || !slices.Equal(got, []string{"0ab-2"}) {
		t.Errorf("claims %v, error %v", got, err)
	}
	if got, err := cdi.MPSClients(specs, cdi.ReplicaKind); err != nil || !slices.Equal(got, []string{"GPU-0::1"}) {
		t.Errorf("replicas %v, error %v", got, err)
	}
	if got, err := cdi.MPSClients(filepath.Join(specs, "missing"), cdi.ClaimKind); err != nil || len(got) > 0 {
		t.Errorf("claims %v, error %v", got, err)
	}
	if err := cdi.PutMPSClient(specs, root, cdi.ClaimKind, "0ab-3", filepath.Join(dir, "missing")); err == nil {
		t.Error("no error without the directory of the server")
	}
}
