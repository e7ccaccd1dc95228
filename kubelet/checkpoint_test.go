package kubelet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// written is a checkpoint as Kubernetes 1.36 writes it.
const written = `{"Data":{"PodDeviceEntries":[{"PodUID":"4be0","ContainerName":"init","ResourceName":"nvidia.com/gpu",` +
	`"DeviceIDs":{"-1":["GPU-a"],"1":["GPU-b"]},"AllocResp":"Cg=="}],"RegisteredDevices":{"nvidia.com/gpu":["GPU-a"]}},"Checksum":3471891297}`

func TestReadCheckpoint(t *testing.T) {
	for name, tc := range map[string]struct {
		write   func(path string) error
		holders int
		says    string
	}{
		"two devices": {func(path string) error { return os.WriteFile(path, []byte(written), 0o600) }, 2, ""},
		"no devices": {func(path string) error {
			return os.WriteFile(path, []byte(`{"Data":{"PodDeviceEntries":null}}`), 0o600)
		}, 0, ""},
		"none":           {func(string) error { return nil }, 0, "no such file"},
		"half a file":    {func(path string) error { return os.WriteFile(path, []byte(written[:90]), 0o600) }, 0, "unexpected end"},
		"something else": {func(path string) error { return os.WriteFile(path, []byte(`{"PodDeviceEntries":[]}`), 0o600) }, 0, "no Data"},
		"a FIFO":         {func(path string) error { return syscall.Mkfifo(path, 0o600) }, 0, "not a regular file"},
		"an endless file": {func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, checkpointLimit+1))
		}, 0, "larger than"},
	} {
		dir := t.TempDir()
		if err := tc.write(filepath.Join(dir, checkpointName)); err != nil {
			t.Fatal(err)
		}
		got, err := ReadCheckpoint(dir)
		if len(got.Holders) != tc.holders || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, %v; want %d holders, an error with %q", name, got.Holders, err, tc.holders, tc.says)
		}
		for _, h := range got.Holders {
			if h.PodUID != "4be0" || h.Container != "init" || h.Resource != "nvidia.com/gpu" || !strings.HasPrefix(h.Device, "GPU-") {
				t.Errorf("%s: %+v", name, h)
			}
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
	replaced(written)
	before, err := ReadCheckpoint(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*checkpointPoll)
	defer cancel()
	if _, err := before.After(ctx, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a write: %v, want the context's end", err)
	}
	replaced(written) // the same content is another version
	if after, err := before.After(t.Context(), dir); err != nil || after.version == before.version || len(after.Holders) != 2 {
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
