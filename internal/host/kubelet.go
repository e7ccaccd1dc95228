package host

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// kubeletDirs are the root directories of the kubelet: by default, on k0s, and on MicroK8s. They do not apply to
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

// KubeletRoot returns the kubelet's root directory, where it finds DRA drivers, as seen by this process and as seen by
// the kubelet: the first of kubeletDir and the known kubelet directories of the node in which a kubelet has run, else
// kubeletDir. Only a kubelet creates the subdirectory pods; hostPath volumes may create the others.
func (r Root) KubeletRoot(kubeletDir string) (local, node string) {
	for _, dir := range append([]string{kubeletDir}, kubeletDirs...) {
		inside, err := r.Resolve(dir)
		if err != nil {
			continue
		}
		if info, err := r.Stat(path.Join(inside, "pods")); err != nil || !info.IsDir() {
			continue
		}
		if dir == kubeletDir {
			break // in a container, kubeletDir is writable, but its LocalPath is not
		}
		return r.LocalPath(inside), r.NodePath(inside)
	}
	return kubeletDir, kubeletDir
}
