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

// written is a checkpoint as Kubernetes 1.36 writes it. Its AllocResp is invalid.
const written = `{"Data":{"PodDeviceEntries":[{"PodUID":"4be0","ContainerName":"init","ResourceName":"nvidia.com/gpu",` +
	`"DeviceIDs":{"-1":["GPU-a"],"1":["GPU-b"]},"AllocResp":"Cg=="}],"RegisteredDevices":{"nvidia.com/gpu":["GPU-a"]}},"Checksum":3471891297}`

func TestReadCheckpoint(t *testing.T) {
	dir := t.TempDir()
	none, err := ReadCheckpoint(dir)
	if err != nil || none.Version != "" || len(none.Held)+len(none.Registered) > 0 || none.Asked.IsZero() || none.Answered.Before(none.Asked) {
		t.Errorf("without a file: %+v, %v; want no version", none, err)
	}
	if err := os.WriteFile(filepath.Join(dir, checkpointName), []byte(written), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadCheckpoint(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got.Version == "" || got.Asked.Before(none.Answered) || got.Answered.Before(got.Asked) {
		t.Errorf("version and stamps are %+v", got)
	}
	slices.SortFunc(got.Held, func(a, b Holder) int { return strings.Compare(a.Device, b.Device) })
	want := []Holder{
		{PodUID: "4be0", Container: "init", Resource: "nvidia.com/gpu", Device: "GPU-a"},
		{PodUID: "4be0", Container: "init", Resource: "nvidia.com/gpu", Device: "GPU-b"},
	}
	if !reflect.DeepEqual(got.Held, want) {
		t.Errorf("held are %+v, want %+v", got.Held, want)
	}
	if want := map[string][]string{"nvidia.com/gpu": {"GPU-a"}}; !reflect.DeepEqual(got.Registered, want) {
		t.Errorf("registered are %v, want %v", got.Registered, want)
	}
}

// The answers of this package lead to the same names in the checkpoint, however they are passed.
func TestReadCheckpointNamesCDIDevices(t *testing.T) {
	for name, tc := range map[string]struct {
		passBy []PassBy
		change func(*api.ContainerAllocateResponse)
		want   []string
	}{
		"by field":      {[]PassBy{ByField}, nil, names(1, 2)},
		"by annotation": {[]PassBy{ByAnnotation}, nil, names(1, 2)},
		"both ways":     {bothWays, nil, names(1, 2)},
		"an annotation that is malformed": {bothWays, func(r *api.ContainerAllocateResponse) {
			r.Annotations["cdi.k8s.io/other"] = "no name"
		}, names(1, 2)},
		"another plugin's": {nil, func(r *api.ContainerAllocateResponse) {
			r.Annotations = map[string]string{"example.com/key": "example.com/gpu=1"}
			r.Envs = map[string]string{"VISIBLE": "1"}
		}, nil},
	} {
		answer, err := newSnapshot(offer(tc.passBy)).answer(uuids(2, 1))
		if err != nil {
			t.Fatal(err)
		}
		if tc.change != nil {
			tc.change(answer)
		}
		response, err := proto.Marshal(answer)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		text := strings.Replace(written, "Cg==", base64.StdEncoding.EncodeToString(response), 1)
		if err := os.WriteFile(filepath.Join(dir, checkpointName), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := ReadCheckpoint(dir)
		if err != nil || len(got.Held) != 2 {
			t.Fatalf("%s: %+v, %v", name, got, err)
		}
		for _, h := range got.Held {
			if !slices.Equal(h.CDI, tc.want) {
				t.Errorf("%s: %s has %v, want %v", name, h.Device, h.CDI, tc.want)
			}
		}
	}
}

func TestReadCheckpointErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		write func(path string) error
		says  string
	}{
		"no devices": {func(path string) error {
			return os.WriteFile(path, []byte(`{"Data":{"PodDeviceEntries":null}}`), 0o600)
		}, ""},
		"half a file":    {func(path string) error { return os.WriteFile(path, []byte(written[:90]), 0o600) }, "unexpected end"},
		"something else": {func(path string) error { return os.WriteFile(path, []byte(`{"PodDeviceEntries":[]}`), 0o600) }, "no Data"},
		"a FIFO":         {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "not a regular file"},
		"an endless file": {func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, checkpointLimit+1))
		}, "larger than"},
	} {
		dir := t.TempDir()
		if err := tc.write(filepath.Join(dir, checkpointName)); err != nil {
			t.Fatal(err)
		}
		got, err := ReadCheckpoint(dir)
		if len(got.Held) > 0 || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, %v; want no holders, an error with %q", name, got.Held, err, tc.says)
		}
	}
}

func TestCheckpointAfter(t *testing.T) {
	dir := t.TempDir()
	replaced := func(text string) {
		path := filepath.Join(dir, checkpointName)
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	none, err := ReadCheckpoint(dir)
	if err != nil {
		t.Fatal(err)
	}
	replaced(written)
	before, err := none.After(t.Context(), dir)
	if err != nil || len(before.Held) != 2 {
		t.Fatalf("after the first write: %v, %v", before, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*checkpointPoll)
	defer cancel()
	if _, err := before.After(ctx, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a write: %v, want the context's end", err)
	}
	replaced(written) // the same content is another version
	if after, err := before.After(t.Context(), dir); err != nil || after.Version == before.Version || len(after.Held) != 2 {
		t.Errorf("after a write: %v, %v", after, err)
	}
}

func TestResend(t *testing.T) {
	r, p := connect(t, offer(bothWays))
	first := receive(t, r.lists, "the devices")
	for range 2 {
		p.Resend()
		if again := receive(t, r.lists, "the same devices again"); len(again.Devices) != len(first.Devices) {
			t.Errorf("sent again: %v", again)
		}
		p.Update(offer(bothWays)) // of no news to the kubelet
	}
	p.Update(offer(bothWays, fault(0, "XID")))
	if list := receive(t, r.lists, "the next devices"); list.Devices[0].Health != api.Unhealthy {
		t.Errorf("a list came that nobody asked for: %v", list)
	}
}
