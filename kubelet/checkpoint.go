package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

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

// Checkpoint is what the kubelet's device manager has on disk about allocated devices. Unlike
// the pod resources it contains init containers. The kubelet writes it for each list that a
// plugin sends and after each allocation, but not when a pod ends: until the next write it
// still names the devices of pods that have ended.
type Checkpoint struct {
	Holders []Holder // with PodUID and Container
	version identity // another one after each write
}

// ReadCheckpoint reads the checkpoint in the device-plugins directory.
func ReadCheckpoint(dir string) (Checkpoint, error) {
	path := filepath.Join(dir, checkpointName)
	version, err := identify(path) // before the content, which may be newer
	if err != nil {
		return Checkpoint{}, fmt.Errorf("reading the kubelet's checkpoint: %w", err)
	}
	data, err := host.ReadFile(path, checkpointLimit)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("reading the kubelet's checkpoint: %w", err)
	}
	holders, err := parseCheckpoint(data)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("reading the kubelet's checkpoint %s: %w", path, err)
	}
	return Checkpoint{Holders: holders, version: version}, nil
}

// parseCheckpoint reads the format of Kubernetes 1.20 and later
// (pkg/kubelet/cm/devicemanager/checkpoint).
func parseCheckpoint(data []byte) ([]Holder, error) {
	var written struct {
		Data *struct {
			PodDeviceEntries []struct {
				PodUID, ContainerName, ResourceName string
				DeviceIDs                           map[string][]string // by NUMA node
			}
		}
	}
	if err := json.Unmarshal(data, &written); err != nil {
		return nil, err
	}
	if written.Data == nil {
		return nil, errors.New("it has no Data")
	}
	var holders []Holder
	for _, entry := range written.Data.PodDeviceEntries {
		for _, ids := range entry.DeviceIDs {
			for _, id := range ids {
				holders = append(holders, Holder{PodUID: entry.PodUID, Container: entry.ContainerName, Resource: entry.ResourceName, Device: id})
			}
		}
	}
	return holders, nil
}

// After waits until the kubelet has written a checkpoint that is not this one, and returns it.
// The error is ctx's if it does not.
func (c Checkpoint) After(ctx context.Context, dir string) (Checkpoint, error) {
	for {
		if now, err := identify(filepath.Join(dir, checkpointName)); err == nil && now != c.version {
			return ReadCheckpoint(dir)
		}
		select {
		case <-ctx.Done():
			return Checkpoint{}, fmt.Errorf("waiting for the kubelet to write its checkpoint: %w", ctx.Err())
		case <-time.After(checkpointPoll):
		}
	}
}
