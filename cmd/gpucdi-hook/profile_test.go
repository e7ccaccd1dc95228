package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

const profileFile = "etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"

// withDevices adds devices to a bundle: two GPUs whose minor numbers differ from their paths, a GPU whose minor number
// exceeds the bit mask, and devices that are not GPUs.
func withDevices(t *testing.T, root string) {
	t.Helper()
	config, err := json.Marshal(specs.Spec{Root: &specs.Root{Path: root}, Linux: &specs.Linux{Devices: []specs.LinuxDevice{
		{Path: "/dev/nvidia0", Major: 195, Minor: 2}, {Path: "/dev/nvidia11", Major: 195, Minor: 5}, {Path: "/dev/nvidia99", Major: 195, Minor: 99},
		{Path: "/dev/nvidiactl", Major: 195, Minor: 7}, {Path: "/dev/nvidia-uvm", Major: 511, Minor: 0}, {Path: "/dev/null", Major: 1, Minor: 3},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(root), "config.json"), config, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestHookWritesProfile(t *testing.T) {
	root, state := bundle(t)
	withDevices(t, root)
	for range 2 { // the second run replaces the profile
		if err := hook([]string{"--graphics", library}, strings.NewReader(state)); err != nil {
			t.Fatal(err)
		}
		const want = `{"profiles":[{"name":"container","settings":["EGLVisibleDGPUDevices",36]}],"rules":[{"pattern":[],"profile":"container"}]}` + "\n"
		if data, err := os.ReadFile(filepath.Join(root, profileFile)); err != nil || string(data) != want {
			t.Errorf("got profile %s, %v, want %s", data, err, want)
		}
	}
	for name := profileFile; name != "etc"; name = filepath.Dir(name) {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o044 != 0o044 {
			t.Errorf("%s is not world-readable: mode %v", name, info.Mode())
		}
	}
}

func TestHookWithoutProfile(t *testing.T) {
	for name, tc := range map[string]struct {
		args    []string
		devices bool
	}{
		"without --graphics": {[]string{library}, true},
		"without GPUs":       {[]string{"--graphics", library}, false},
	} {
		root, state := bundle(t)
		if tc.devices {
			withDevices(t, root)
		}
		if err := hook(tc.args, strings.NewReader(state)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(root, "etc/nvidia")); !os.IsNotExist(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The hook follows no symlinks of the image.
func TestHookWritesProfileInRoot(t *testing.T) {
	for _, link := range []string{"etc/nvidia", "etc/nvidia/nvidia-application-profiles-rc.d", profileFile} {
		root, state := bundle(t)
		withDevices(t, root)
		outside, path := filepath.Join(filepath.Dir(root), "outside"), filepath.Join(root, link)
		relative, err := filepath.Rel(filepath.Dir(path), outside)
		if err := errors.Join(err, os.Mkdir(outside, 0o755), os.MkdirAll(filepath.Dir(path), 0o755)); err != nil {
			t.Fatal(err)
		}
		t.Chdir(outside)
		for _, target := range []string{outside, relative, "/proc/self/cwd"} {
			isFile := link == profileFile
			if isFile {
				target += "/profile" // created if the hook opens the symlink
			}
			if err := errors.Join(os.RemoveAll(path), os.Symlink(target, path)); err != nil {
				t.Fatal(err)
			}
			err := hook([]string{"--graphics", library}, strings.NewReader(state))
			if isFile != (err == nil) { // a file is replaced
				t.Errorf("%s is a symlink to %s: %v", link, target, err)
			}
			if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
				t.Errorf("%s is a symlink to %s: got files outside the root %v, %v", link, target, entries, err)
			}
		}
	}
}
