package host

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// kubeletDirs are the root directories of the kubelet: the default, and those of k0s and MicroK8s. They do not apply to
// device-plugins, whose path is a constant in the kubelet.
var kubeletDirs = []string{"/var/lib/kubelet", "/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet"}

// PodResources returns the path, as seen by this process, of the kubelet's pod resources socket: the one in kubeletDir
// if it exists, else one in the known kubelet directories of the node, else the one in kubeletDir.
func (r Root) PodResources(kubeletDir string) string {
	const socket = "pod-resources/kubelet.sock"
	configured := filepath.Join(kubeletDir, socket)
	if _, err := os.Stat(configured); err == nil {
		return configured
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
	return configured
}
