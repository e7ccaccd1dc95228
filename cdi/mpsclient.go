package cdi

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpucdi/gpucdi/internal/host"
)

// Kinds of the CDI devices that make containers clients of an MPS server. Each device has its own spec. Runtimes cache
// specs, so a name always has the same contents.
const (
	ClaimKind   = AgentVendor + "/claim"   // the names are UIDs of ResourceClaims
	ReplicaKind = AgentVendor + "/replica" // the names are those of allocator.ReplicaName, such as GPU-…::1-0a1b2c3d
)

// PutMPSClient writes and verifies the spec of a device. dir is the pipe directory on the node; containers get no other
// directory of the server.
func PutMPSClient(specDir string, root host.Root, kind, name, dir string) error {
	// The default pipe directory of clients that run as root, with protocol 3 of MPS (see package mps).
	const inContainer = "/run/nvidia-mps"
	spec := &specs.Spec{
		Kind: kind,
		Devices: []specs.Device{{Name: name, ContainerEdits: specs.ContainerEdits{
			Env: []string{"CUDA_MPS_PIPE_DIRECTORY=" + inContainer},
		}}},
		// Not in the edits of the only device, because verification checks only the mounts that all devices share.
		ContainerEdits: specs.ContainerEdits{Mounts: []*specs.Mount{{
			HostPath: dir, ContainerPath: inContainer, Options: []string{"ro", "nosuid", "nodev", "noexec", "bind"},
		}}},
	}
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return err
	}
	spec.Version = version
	_, err = NewFile(mpsClientFile(specDir, kind, name), JSON, root).Put(spec)
	return err
}

// RemoveMPSClient removes the spec of a device. It succeeds if there is none.
func RemoveMPSClient(specDir, kind, name string) error {
	if err := host.RemoveFile(mpsClientFile(specDir, kind, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// MPSClients returns the names of the devices of a kind that have a spec.
func MPSClients(specDir, kind string) (names []string, err error) {
	entries, err := os.ReadDir(specDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		file, isJSON := strings.CutSuffix(e.Name(), ".json")
		if name, ok := strings.CutPrefix(file, mpsClientPrefix(kind)); ok && isJSON {
			names = append(names, name)
		}
	}
	return names, err
}

func mpsClientFile(specDir, kind, name string) string {
	return filepath.Join(specDir, mpsClientPrefix(kind)+name+".json")
}

func mpsClientPrefix(kind string) string { return strings.ReplaceAll(kind, "/", "-") + "-" }
