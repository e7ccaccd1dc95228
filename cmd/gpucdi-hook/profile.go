package main

import (
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// The location and format of application profiles are documented in the driver's README, appendix "Application
// profiles". The setting is a bit mask of GPUs by the minor number of their device nodes.
const (
	profileDir     = "nvidia-application-profiles-rc.d" // in /etc/nvidia
	profileName    = "10-container.conf"
	visibleGPUsKey = "EGLVisibleDGPUDevices"
)

// addProfile writes a profile that limits the driver's EGL and Vulkan libraries to the container's GPUs. Otherwise they
// enumerate all GPUs of the machine, and may fail to present images if the first GPU is not the container's.
func addProfile(etc *os.File, devices []specs.LinuxDevice) error {
	visible := gpuMask(devices)
	if visible == 0 {
		return nil
	}
	profile, err := json.Marshal(map[string]any{
		"profiles": []any{map[string]any{"name": "container", "settings": []any{visibleGPUsKey, visible}}},
		"rules":    []any{map[string]any{"pattern": []any{}, "profile": "container"}},
	})
	if err != nil {
		return err
	}
	err = writeProfile(etc, append(profile, '\n'))
	// EROFS: see addToCache. EXDEV, EBUSY: the file or one of its directories is a mount, which is kept.
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	return err
}

func writeProfile(etc *os.File, profile []byte) error {
	vendor, err := makeDir(etc, "nvidia")
	if err != nil {
		return err
	}
	defer vendor.Close()
	dir, err := makeDir(vendor, profileDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return replace(dir, profileName, profile)
}

// gpuMask returns the bit mask of the GPUs among devices, by minor number. It omits minor numbers above 63.
func gpuMask(devices []specs.LinuxDevice) (mask uint64) {
	for _, d := range devices {
		number, ok := strings.CutPrefix(d.Path, "/dev/nvidia")
		if _, err := strconv.ParseUint(number, 10, 32); ok && err == nil && d.Minor >= 0 && d.Minor < 64 {
			mask |= 1 << d.Minor
		}
	}
	return mask
}

// makeDir creates a directory in parent, unless it exists, and returns an O_PATH handle for it. A symlink is an error.
func makeDir(parent *os.File, name string) (*os.File, error) {
	err := unix.Mkdirat(int(parent.Fd()), name, 0o755)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	return openBelow(parent, name, unix.O_DIRECTORY|unix.O_NOFOLLOW)
}
