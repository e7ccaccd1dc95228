package kubelet

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/internal/host"
)

// preparedClaims is a file of kubelet 1.36 with a claim that two drivers have prepared, and an unprepared claim of
// each.
const preparedClaims = `{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[` +
	`{\"ClaimUID\":\"u2\",\"ClaimName\":\"shared\",\"Namespace\":\"default\",\"PodUIDs\":{\"p2\":{},\"p1\":{}},\"DriverState\":{` +
	`\"gpu.nvidia.com\":{\"Devices\":[{\"PoolName\":\"node-1\",\"DeviceName\":\"gpu-a\",\"ShareID\":null,\"RequestNames\":[\"gpu\"],\"CDIDeviceIDs\":[\"gpucdi.dev/gpu=GPU-a\"]},` +
	`{\"PoolName\":\"network\",\"DeviceName\":\"gpu-b\"}]},\"nic.example.com\":{\"Devices\":[{\"PoolName\":\"node-1\",\"DeviceName\":\"nic-0\"}]}}},` +
	`{\"ClaimUID\":\"u1\",\"ClaimName\":\"new\",\"Namespace\":\"default\",\"PodUIDs\":{\"p3\":{}},\"DriverState\":{\"gpu.nvidia.com\":{\"Devices\":null}}},` +
	`{\"ClaimUID\":\"u3\",\"ClaimName\":\"nic\",\"Namespace\":\"default\",\"PodUIDs\":{\"p4\":{}},\"DriverState\":{\"nic.example.com\":{\"Devices\":null}}}` +
	`]}","Checksum":1}`

func TestPreparedClaims(t *testing.T) {
	dir := t.TempDir()
	read := func(text string) ([]PreparedClaim, error) {
		if err := os.WriteFile(filepath.Join(dir, "dra_manager_state"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return PreparedClaims(host.NewRoot("/"), dir)
	}
	if none, err := PreparedClaims(host.NewRoot("/"), dir); none != nil || err != nil {
		t.Errorf("without a file: got %v, %v", none, err)
	}
	got, err := read(preparedClaims)
	want := []PreparedClaim{
		{UID: "u1", Namespace: "default", Name: "new", Pods: []string{"p3"}, Drivers: []string{"gpu.nvidia.com"}},
		{UID: "u2", Namespace: "default", Name: "shared", Pods: []string{"p1", "p2"}, Drivers: []string{"gpu.nvidia.com", "nic.example.com"},
			Devices: []PreparedDevice{
				{"gpu.nvidia.com", "node-1", "gpu-a", []string{"gpu"}, []string{"gpucdi.dev/gpu=GPU-a"}},
				{"gpu.nvidia.com", "network", "gpu-b", nil, nil},
				{"nic.example.com", "node-1", "nic-0", nil, nil},
			}},
		{UID: "u3", Namespace: "default", Name: "nic", Pods: []string{"p4"}, Drivers: []string{"nic.example.com"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for _, empty := range []string{`null`, `[]`} {
		if none, err := read(`{"Data":"{\"ClaimInfoStateList\":` + empty + `}"}`); none == nil || len(none) > 0 || err != nil {
			t.Errorf("without claims: got %v, %v", none, err)
		}
	}
	for _, damaged := range []string{"", "{", `{"Data":""}`, `{"Data":"[]"}`, `{"Data":"{\"Claims\":[]}"}`, strings.Replace(preparedClaims, `\"p1\":{}`, `\"p1\":1`, 1)} {
		if _, err := read(damaged); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%.40s: got error %v, want one with the path", damaged, err)
		}
	}
}
