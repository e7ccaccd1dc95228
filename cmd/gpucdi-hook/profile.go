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

// The driver's README, appendix "Application profiles", has where such files are, what is in
// them, and the setting, which has a bit for each GPU by the minor of its node.
const (
	profileDir  = "nvidia-application-profiles-rc.d" // in /etc/nvidia
	profileName = "10-container.conf"
	visibleGPUs = "EGLVisibleDGPUDevices"
)

// addProfile tells the driver's libraries for EGL and Vulkan which GPUs are the container's. They
// look at all of the machine's otherwise, and where the first is not among the container's they
// may fail to present what they have drawn.
func addProfile(etc *os.File, devices []specs.LinuxDevice) error {
	visible := gpuBits(devices)
	if visible == 0 {
		return nil
	}
	profile, err := json.Marshal(map[string]any{
		"profiles": []any{map[string]any{"name": "container", "settings": []any{visibleGPUs, visible}}},
		"rules":    []any{map[string]any{"pattern": []any{}, "profile": "container"}},
	})
	if err != nil {
		return err
	}
	err = writeProfile(etc, append(profile, '\n'))
	// See addToCache for the first. What somebody has mounted is theirs: a directory on the way, or
	// the file.
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

// gpuBits has the bits of the GPUs among devices.
func gpuBits(devices []specs.LinuxDevice) (bits uint64) {
	for _, d := range devices {
		number, is := strings.CutPrefix(d.Path, "/dev/nvidia")
		if _, err := strconv.ParseUint(number, 10, 32); is && err == nil && d.Minor >= 0 && d.Minor < 64 {
			bits |= 1 << d.Minor
		}
	}
	return bits
}

// makeDir makes a directory in parent, unless it is there, and returns a handle on it. A link is an
// error.
func makeDir(parent *os.File, name string) (*os.File, error) {
	err := unix.Mkdirat(int(parent.Fd()), name, 0o755)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "make", Path: name, Err: err}
	}
	return openBelow(parent, name, unix.O_DIRECTORY|unix.O_NOFOLLOW)
}
