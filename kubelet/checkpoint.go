package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpucdi/gpucdi/allocator"
	"github.com/gpucdi/gpucdi/internal/host"
)

const (
	// checkpointName is the file of the device manager in the device-plugins directory.
	checkpointName = "kubelet_internal_checkpoint"
	// checkpointLimit bounds the size of the checkpoint, in bytes. Each device of a container takes about 500.
	checkpointLimit = 16 << 20
	// checkpointPoll is the interval between checks for a new version.
	checkpointPoll = 20 * time.Millisecond
)

// Checkpoint is the content of the kubelet's device manager checkpoint. Unlike the pod resources API it includes all
// init containers. The kubelet writes it after each ListAndWatch message and each allocation, but not when a pod
// ends, so it may still contain devices of terminated pods.
type Checkpoint struct {
	Requested, Received time.Time // before and after the file was read

	// Version differs for each file that was renamed into place. It consists of device, inode, mtime and size,
	// and is empty if the file does not exist.
	Version string

	Holders    []Holder            // without Namespace, Pod and Claim, which the checkpoint lacks
	Registered map[string][]string // IDs of the devices that were healthy at the time of the write, by resource
}

// ReadCheckpoint reads the checkpoint in the device-plugins directory. A missing file is not an error. On an error, at
// most Version is set.
func ReadCheckpoint(dir string) (Checkpoint, error) {
	path := filepath.Join(dir, checkpointName)
	c := Checkpoint{Requested: time.Now()}
	var err error
	if c.Version, err = checkpointVersion(path); err != nil { // read first: the content may be newer, but not older
		return Checkpoint{}, fmt.Errorf("reading the kubelet's checkpoint: %w", err)
	}
	if c.Version != "" {
		data, err := host.ReadFile(path, checkpointLimit)
		if err != nil {
			return Checkpoint{Version: c.Version}, fmt.Errorf("reading the kubelet's checkpoint: %w", err)
		}
		if err := c.parse(data); err != nil {
			return Checkpoint{Version: c.Version}, fmt.Errorf("reading the kubelet's checkpoint %s: %w", path, err)
		}
	}
	c.Received = time.Now()
	return c, nil
}

// checkpointVersion returns the version of the file at path; empty if it does not exist.
func checkpointVersion(path string) (string, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	stat := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d:%d.%09d:%d", stat.Dev, stat.Ino, stat.Mtim.Sec, stat.Mtim.Nsec, stat.Size), nil
}

// parse decodes the format of Kubernetes 1.20 and later (pkg/kubelet/cm/devicemanager/checkpoint).
func (c *Checkpoint) parse(data []byte) error {
	var decoded struct {
		Data *struct {
			PodDeviceEntries []struct {
				PodUID, ContainerName, ResourceName string
				DeviceIDs                           map[string][]string // by NUMA node
				AllocResp                           []byte
			}
			RegisteredDevices map[string][]string
		}
	}
	if err := json.Unmarshal(data, &decoded); err != nil {
		return err
	}
	if decoded.Data == nil {
		return errors.New("missing Data")
	}
	c.Registered = decoded.Data.RegisteredDevices
	for _, entry := range decoded.Data.PodDeviceEntries {
		names := cdiNames(entry.AllocResp)
		for _, ids := range entry.DeviceIDs {
			for _, id := range ids {
				c.Holders = append(c.Holders, Holder{PodUID: entry.PodUID, Container: entry.ContainerName,
					Resource: entry.ResourceName, Device: id, CDI: names})
			}
		}
	}
	return nil
}

// Allocations returns a function that returns the devices allocated to a container, without replica suffixes, sorted.
// viaCDI are those that the runtime injects by CDI device names of the given kind. It lacks devices that NVIDIA's device
// plugin allocated and a hook or NVIDIA's runtime injects. The devices of a claim are in allocated for each container of
// its pods, because the checkpoint of claims does not name containers. They are in viaCDI if they are in holders, the
// response of the pod resources API, and the claim has a single request: the API lists all devices of a claim for each
// container that uses the claim, including those of requests that the container does not use.
//
// A container with the monitor has the devices in all.
func Allocations(kind string, all []string, c Checkpoint, claims []PreparedClaim, holders []Holder) func(podUID, namespace, pod, container string) (allocated, viaCDI []string) {
	return func(podUID, namespace, pod, container string) (allocated, viaCDI []string) {
		for _, claim := range claims {
			if slices.Contains(claim.Pods, podUID) {
				devices, certain := claim.devices(kind, func(d PreparedDevice) bool {
					return slices.ContainsFunc(holders, func(h Holder) bool {
						return h.Container == container && h.Pod == pod && h.Namespace == namespace &&
							h.Claim == claim.Name && h.Resource == d.Driver && h.Device == d.Name
					})
				})
				allocated, viaCDI = append(allocated, devices...), append(viaCDI, certain...)
			}
		}
		for _, h := range c.Holders {
			if h.PodUID != podUID || h.Container != container {
				continue
			}
			device := allocator.DeviceOf(h.Device)
			if device == allocator.MonitorID {
				allocated = append(allocated, all...)
				continue
			}
			allocated = append(allocated, device)
			if slices.ContainsFunc(h.CDI, func(name string) bool { return refersTo(name, kind, device) }) {
				viaCDI = append(viaCDI, device)
			}
		}
		slices.Sort(allocated)
		slices.Sort(viaCDI)
		return slices.Compact(allocated), slices.Compact(viaCDI)
	}
}

// refersTo reports whether a qualified CDI device name is of the given kind and refers to the given device.
func refersTo(name, kind, device string) bool {
	return strings.HasPrefix(name, kind+"=") && allocator.DeviceOfCDI(name) == device
}

// cdiNames returns the distinct CDI device names in an encoded ContainerAllocateResponse, from the CDI field and
// from CDI annotations. Invalid responses and invalid CDI annotations are ignored.
func cdiNames(encoded []byte) (names []string) {
	var response api.ContainerAllocateResponse
	if err := proto.Unmarshal(encoded, &response); err != nil {
		return nil
	}
	for _, d := range response.GetCdiDevices() {
		names = append(names, d.GetName())
	}
	for key, value := range response.GetAnnotations() {
		if _, annotated, err := cdi.ParseAnnotations(map[string]string{key: value}); err == nil {
			names = append(names, annotated...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// After waits for a version of the checkpoint in dir other than c's and returns it. The error wraps
// ctx.Err() if the kubelet writes none in time.
func (c Checkpoint) After(ctx context.Context, dir string) (Checkpoint, error) {
	for {
		version, err := checkpointVersion(filepath.Join(dir, checkpointName))
		if err == nil && version != "" && version != c.Version {
			return ReadCheckpoint(dir)
		}
		select {
		case <-ctx.Done():
			return Checkpoint{}, fmt.Errorf("waiting for the kubelet to write its checkpoint: %w", ctx.Err())
		case <-time.After(checkpointPoll):
		}
	}
}
