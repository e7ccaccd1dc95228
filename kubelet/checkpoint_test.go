package kubelet

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// checkpointText is a checkpoint in the format of Kubernetes 1.36. Its AllocResp is invalid.
const checkpointText = `{"Data":{"PodDeviceEntries":[{` +
	`"PodUID":"4be0","ContainerName":"init","ResourceName":"nvidia.com/gpu",` +
	`"DeviceIDs":{"-1":["GPU-a"],"1":["GPU-b"]},"AllocResp":"Cg=="}],` +
	`"RegisteredDevices":{"nvidia.com/gpu":["GPU-a"]}},"Checksum":3471891297}`

func TestReadCheckpoint(t *testing.T) {
	dir := t.TempDir()
	none, err := ReadCheckpoint(dir)
	if err != nil || none.Version != "" || len(none.Holders)+len(none.Registered) > 0 ||
		none.Requested.IsZero() || none.Received.Before(none.Requested) {
		t.Errorf("no file: %+v, %v; want no version", none, err)
	}
	if err := os.WriteFile(filepath.Join(dir, checkpointName), []byte(checkpointText), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadCheckpoint(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got.Version == "" || got.Requested.Before(none.Received) || got.Received.Before(got.Requested) {
		t.Errorf("wrong version or timestamps: %+v", got)
	}
	slices.SortFunc(got.Holders, func(a, b Holder) int { return strings.Compare(a.Device, b.Device) })
	want := []Holder{
		{PodUID: "4be0", Container: "init", Resource: "nvidia.com/gpu", Device: "GPU-a"},
		{PodUID: "4be0", Container: "init", Resource: "nvidia.com/gpu", Device: "GPU-b"},
	}
	if !reflect.DeepEqual(got.Holders, want) {
		t.Errorf("holders %+v, want %+v", got.Holders, want)
	}
	if want := map[string][]string{"nvidia.com/gpu": {"GPU-a"}}; !reflect.DeepEqual(got.Registered, want) {
		t.Errorf("registered %v, want %v", got.Registered, want)
	}
}

// The holders in the checkpoint have the CDI device names of the response, by field and by annotation.
func TestReadCheckpointCDIDevices(t *testing.T) {
	for name, tc := range map[string]struct {
		passBy []PassBy
		change func(*api.ContainerAllocateResponse)
		want   []string
	}{
		"by field":      {[]PassBy{ByField}, nil, names(1, 2)},
		"by annotation": {[]PassBy{ByAnnotation}, nil, names(1, 2)},
		"by both":       {bothWays, nil, names(1, 2)},
		"malformed annotation": {bothWays, func(r *api.ContainerAllocateResponse) {
			r.Annotations["cdi.k8s.io/other"] = "no name"
		}, names(1, 2)},
		"response of another plugin": {nil, func(r *api.ContainerAllocateResponse) {
			r.Annotations = map[string]string{"example.com/key": "example.com/gpu=1"}
			r.Envs = map[string]string{"VISIBLE": "1"}
		}, nil},
	} {
		response, err := newSnapshot(offer(tc.passBy)).respond(uuids(2, 1))
		if err != nil {
			t.Fatal(err)
		}
		if tc.change != nil {
			tc.change(response)
		}
		encoded, err := proto.Marshal(response)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		text := strings.Replace(checkpointText, "Cg==", base64.StdEncoding.EncodeToString(encoded), 1)
		if err := os.WriteFile(filepath.Join(dir, checkpointName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadCheckpoint(dir)
		if err != nil || len(got.Holders) != 2 {
			t.Fatalf("%s: %+v, %v", name, got, err)
		}
		for _, h := range got.Holders {
			if !slices.Equal(h.CDI, tc.want) {
				t.Errorf("%s: %s has %v, want %v", name, h.Device, h.CDI, tc.want)
			}
		}
	}
}

func TestReadCheckpointErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		write func(path string) error
		want  string
	}{
		"no devices": {func(path string) error {
			return os.WriteFile(path, []byte(`{"Data":{"PodDeviceEntries":null}}`), 0o600)
		}, ""},
		"truncated file": {func(path string) error {
			return os.WriteFile(path, []byte(checkpointText[:90]), 0o600)
		}, "unexpected end"},
		"unknown format": {func(path string) error {
			return os.WriteFile(path, []byte(`{"PodDeviceEntries":[]}`), 0o600)
		}, "missing Data"},
		"FIFO": {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "not a regular file"},
		"file too large": {func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, checkpointLimit+1))
		}, "larger than"},
	} {
		dir := t.TempDir()
		if err := tc.write(filepath.Join(dir, checkpointName)); err != nil {
			t.Fatal(err)
		}
		got, err := ReadCheckpoint(dir)
		if len(got.Holders) > 0 || (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, %v; want no holders, an error with %q", name, got.Holders, err, tc.want)
		}
	}
}

func TestCheckpointAfter(t *testing.T) {
	dir := t.TempDir()
	replace := func(text string) {
		path := filepath.Join(dir, checkpointName)
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	none, err := ReadCheckpoint(dir)
	if err != nil {
		t.Fatal(err)
	}
	replace(checkpointText)
	before, err := none.After(t.Context(), dir)
	if err != nil || len(before.Holders) != 2 {
		t.Fatalf("first version: %v, %v", before, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*checkpointPoll)
	defer cancel()
	if _, err := before.After(ctx, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no write: %v, want DeadlineExceeded", err)
	}
	replace(checkpointText) // same content, new version
	after, err := before.After(t.Context(), dir)
	if err != nil || after.Version == before.Version || len(after.Holders) != 2 {
		t.Errorf("next version: %v, %v", after, err)
	}
}

func TestResend(t *testing.T) {
	r, p := connect(t, offer(bothWays))
	first := receive(t, r.lists, "the devices")
	for range 2 {
		p.Resend()
		if again := receive(t, r.lists, "the list again"); len(again.Devices) != len(first.Devices) {
			t.Errorf("list sent again: %v", again)
		}
		p.Update(offer(bothWays)) // unchanged, not sent
	}
	p.Update(offer(bothWays, fault(0, "XID")))
	if list := receive(t, r.lists, "the next devices"); list.Devices[0].Health != api.Unhealthy {
		t.Errorf("unexpected list: %v", list)
	}
}

func TestAllocations(t *testing.T) {
	ours, others := []string{"gpucdi.dev/gpu=GPU-a"}, []string{"nvidia.com/gpu=GPU-b"}
	c := Checkpoint{Holders: []Holder{
		{PodUID: "pod", Container: "main", Device: "GPU-c"},
		{PodUID: "pod", Container: "main", Device: "GPU-b", CDI: others},
		{PodUID: "pod", Container: "main", Device: "GPU-a::1", CDI: ours},
		{PodUID: "pod", Container: "main", Device: "GPU-a::0", CDI: ours},
		{PodUID: "pod", Container: "main", Device: "GPU-h", CDI: []string{"gpucdi.dev/gpu=GPU-h.graphics"}},
		{PodUID: "pod", Container: "other", Device: "GPU-d", CDI: ours},
		{PodUID: "other", Container: "main", Device: "GPU-e", CDI: ours},
	}}
	const driver = "gpu.nvidia.com"
	one := []string{driver}
	claims := []PreparedClaim{
		{Namespace: "ns", Name: "f", Pods: []string{"pod"}, Drivers: one, Devices: []PreparedDevice{
			{Driver: driver, Name: "gpu-f", Requests: []string{"one"}, CDI: []string{"gpucdi.dev/gpu=GPU-f.video", "gpucdi.dev/gpu=GPU-f.graphics", "gpucdi.dev/rdma=all"}},
		}},
		{Namespace: "ns", Name: "i", Pods: []string{"pod"}, Drivers: one, Devices: []PreparedDevice{{Driver: driver, Name: "gpu-i", CDI: []string{"gpucdi.dev/gpu=GPU-i"}}}},
		{Namespace: "ns", Name: "two", Pods: []string{"pod"}, Drivers: one, Devices: []PreparedDevice{
			{Driver: driver, Name: "gpu-j", Requests: []string{"one"}, CDI: []string{"gpucdi.dev/gpu=GPU-j"}},
			{Driver: driver, Name: "gpu-k", Requests: []string{"two"}, CDI: []string{"gpucdi.dev/gpu=GPU-k"}},
		}},
		{Namespace: "ns", Name: "nic", Pods: []string{"pod"}, Drivers: []string{driver, "nic.example.com"}, Devices: []PreparedDevice{ // without the NIC
			{Driver: driver, Name: "gpu-l", Requests: []string{"one"}, CDI: []string{"gpucdi.dev/gpu=GPU-l"}},
		}},
		{Namespace: "ns", Name: "g", Pods: []string{"other"}, Drivers: one, Devices: []PreparedDevice{{Driver: driver, Name: "gpu-g", CDI: []string{"gpucdi.dev/gpu=GPU-g"}}}},
	}
	holders := []Holder{
		{Namespace: "ns", Pod: "name", Container: "main", Claim: "f", Resource: driver, Device: "gpu-f"},
		{Namespace: "ns", Pod: "name", Container: "other", Claim: "i", Resource: driver, Device: "gpu-i"},
		{Namespace: "ns", Pod: "name", Container: "main", Claim: "two", Resource: driver, Device: "gpu-j"}, // it may use only request two
		{Namespace: "ns", Pod: "name", Container: "main", Claim: "nic", Resource: driver, Device: "gpu-l"}, // it may use only the NIC
		{Namespace: "ns", Pod: "name", Container: "main", Claim: "g", Resource: driver, Device: "gpu-g"},   // of a pod with the same name
	}
	c.Holders = append(c.Holders, Holder{PodUID: "pod", Container: "monitor", Device: "monitor::0", CDI: []string{"gpucdi.dev/gpu=monitor"}})
	allocations := Allocations("gpucdi.dev/gpu", []string{"GPU-x", "GPU-y"}, c, nil, nil)
	if allocated, _ := allocations("pod", "ns", "name", "monitor"); !slices.Equal(allocated, []string{"GPU-x", "GPU-y"}) {
		t.Errorf("a monitor is allocated %v", allocated)
	}
	allocated, viaCDI := Allocations("gpucdi.dev/gpu", nil, c, claims, holders)("pod", "ns", "name", "main")
	if !slices.Equal(allocated, []string{"GPU-a", "GPU-b", "GPU-c", "GPU-f", "GPU-h", "GPU-i", "GPU-j", "GPU-k", "GPU-l"}) || !slices.Equal(viaCDI, []string{"GPU-a", "GPU-f", "GPU-h"}) {
		t.Errorf("got %v, %v", allocated, viaCDI)
	}
}
