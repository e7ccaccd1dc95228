package host

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// kubeletDirs are the root directories of kubelets: by default, with k0s, and
// with MicroK8s. They move all but device-plugins, whose place is a constant of
// the kubelet.
var kubeletDirs = []string{"/var/lib/kubelet", "/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet"}

// PodResources returns where this process sees the socket on which the kubelet
// tells what its pods hold: in kubeletDir, or else where the node has it.
func (r Root) PodResources(kubeletDir string) string {
	const socket = "pod-resources/kubelet.sock"
	given := filepath.Join(kubeletDir, socket)
	if _, err := os.Stat(given); err == nil {
		return given
	}
	for _, dir := range kubeletDirs {
		inside, err := r.Resolve(path.Join(dir, socket))
		if err != nil {
			continue
		}
		if info, err := r.Stat(inside); err == nil && info.Mode().Type() == fs.ModeSocket {
			return r.LocalPath(inside)
		}
	}
	return given
}
