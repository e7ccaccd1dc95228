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
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/gpucdi/gpucdi/internal/host"
)

const (
	// checkpointName is the device manager's file in the device-plugins directory.
	checkpointName = "kubelet_internal_checkpoint"
	// checkpointLimit bounds what is read of it: some 500 bytes for each device of a container.
	checkpointLimit = 16 << 20
	// checkpointPoll is the time between two looks for a new version.
	checkpointPoll = 20 * time.Millisecond
)

// Checkpoint is one reading of what the kubelet's device manager has on disk about allocated
// devices. Unlike the pod resources it contains init containers. The kubelet writes it for each
// list that a plugin sends and after each allocation, but not when a pod ends: until the next
// write it still names the devices of pods that have ended.
type Checkpoint struct {
	Asked, Answered time.Time

	// Version is different for each file that was renamed into place: device, inode, mtime and
	// size. It is empty if there is no file.
	Version string

	Held       []Holder            // with PodUID, Container and CDI
	Registered map[string][]string // IDs that were healthy when it was written, by resource
}

// ReadCheckpoint reads the checkpoint in the device-plugins directory. That there is none yet is
// no error.
func ReadCheckpoint(dir string) (Checkpoint, error) {
	path := filepath.Join(dir, checkpointName)
	c := Checkpoint{Asked: time.Now()}
	var err error
	if c.Version, err = checkpointVersion(path); err != nil { // before the content, which may be newer
		return Checkpoint{}, fmt.Errorf("reading the kubelet's checkpoint: %w", err)
	}
	if c.Version != "" {
		data, err := host.ReadFile(path, checkpointLimit)
		if err != nil {
			return Checkpoint{}, fmt.Errorf("reading the kubelet's checkpoint: %w", err)
		}
		if err := c.parse(data); err != nil {
			return Checkpoint{}, fmt.Errorf("reading the kubelet's checkpoint %s: %w", path, err)
		}
	}
	c.Answered = time.Now()
	return c, nil
}

// checkpointVersion returns the version of the file, empty if it does not exist.
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

// parse reads the format of Kubernetes 1.20 and later (pkg/kubelet/cm/devicemanager/checkpoint).
func (c *Checkpoint) parse(data []byte) error {
	var written struct {
		Data *struct {
			PodDeviceEntries []struct {
				PodUID, ContainerName, ResourceName string
				DeviceIDs                           map[string][]string // by NUMA node
				AllocResp                           []byte
			}
			RegisteredDevices map[string][]string
		}
	}
	if err := json.Unmarshal(data, &written); err != nil {
		return err
	}
	if written.Data == nil {
		return errors.New("it has no Data")
	}
	c.Registered = written.Data.RegisteredDevices
	for _, entry := range written.Data.PodDeviceEntries {
		names := cdiNames(entry.AllocResp)
		for _, ids := range entry.DeviceIDs {
			for _, id := range ids {
				c.Held = append(c.Held, Holder{PodUID: entry.PodUID, Container: entry.ContainerName,
					Resource: entry.ResourceName, Device: id, CDI: names})
			}
		}
	}
	return nil
}

// cdiNames returns the CDI devices of an answer to Allocate, by field or annotation, each once.
// Answers of other plugins are in the checkpoint too: what cannot be parsed has no names.
func cdiNames(answer []byte) (names []string) {
	var response api.ContainerAllocateResponse
	if err := proto.Unmarshal(answer, &response); err != nil {
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

// After waits until the kubelet has written a checkpoint that is not this one, and returns it.
// The error is ctx's if it does not.
func (c Checkpoint) After(ctx context.Context, dir string) (Checkpoint, error) {
	for {
		if now, err := checkpointVersion(filepath.Join(dir, checkpointName)); err == nil && now != "" && now != c.Version {
			return ReadCheckpoint(dir)
		}
		select {
		case <-ctx.Done():
			return Checkpoint{}, fmt.Errorf("waiting for the kubelet to write its checkpoint: %w", ctx.Err())
		case <-time.After(checkpointPoll):
		}
	}
}
