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

// ClaimKind is the CDI kind of devices that are specific to a ResourceClaim. Their names are the UIDs of the claims, so
// that no name is reused: runtimes cache specs.
const ClaimKind = AgentVendor + "/claim"

// claimFilePrefix is the prefix of the names of spec files of claims.
const claimFilePrefix = AgentVendor + "-claim-"

// ClaimDevice returns the qualified name of the CDI device of a claim.
func ClaimDevice(uid string) string { return ClaimKind + "=" + uid }

// PutMPSClient writes and verifies the spec of a claim whose containers are clients of an MPS server. dir is the pipe
// directory on the node; containers get no other directory of the server.
func PutMPSClient(specDir string, root host.Root, uid, dir string) error {
	// The default pipe directory of root with MPS protocol 3.
	const inContainer = "/run/nvidia-mps"
	spec := &specs.Spec{
		Kind: ClaimKind,
		Devices: []specs.Device{{Name: uid, ContainerEdits: specs.ContainerEdits{
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
	_, err = claimFile(specDir, root, uid).Put(spec)
	return err
}

// RemoveClaim removes the spec of a claim. It succeeds if there is none.
func RemoveClaim(specDir, uid string) error {
	if err := host.RemoveFile(claimFile(specDir, host.NewRoot("/"), uid).Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ClaimSpecs returns the UIDs of the claims with a spec.
func ClaimSpecs(specDir string) (uids []string, err error) {
	entries, err := os.ReadDir(specDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if uid, ok := strings.CutPrefix(strings.TrimSuffix(e.Name(), ".json"), claimFilePrefix); ok && strings.HasSuffix(e.Name(), ".json") {
			uids = append(uids, uid)
		}
	}
	return uids, err
}

func claimFile(specDir string, root host.Root, uid string) *File {
	return NewFile(filepath.Join(specDir, claimFilePrefix+uid+".json"), JSON, root)
}
