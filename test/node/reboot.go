package node

import (
	"context"
	"fmt"
)

// halt kills the kubelet, the container runtime and all containers, and removes what a reboot does not preserve: cgroups,
// mounts, network namespaces, and the files of the runtime and of the agent in /run.
const halt = `set -e
pkill -9 -x kubelet || true
pkill -9 -x %[1]s || true
pkill -9 containerd-shim || true
find /sys/fs/cgroup -path '*/kubepods/*' -name cgroup.procs -exec cat {} + | sort -u | xargs -r kill -9 || true
awk -v kubelet=%[2]s/pods/ 'index($5, "/run/containerd/") == 1 || index($5, "/run/netns/") == 1 || index($5, kubelet) == 1 {print $5}' /proc/self/mountinfo |
	sort -r | xargs -r umount -l
for i in 1 2 3 4 5 6 7 8 9 10; do # killed processes need a moment to leave their cgroups
	find /sys/fs/cgroup -depth -path '*/kubepods/*' -type d -exec rmdir {} + 2>/dev/null && break
	sleep 0.5
done
rm -rf /run/containerd /run/netns /run/cdi /run/gpucdi`

// Reboot does to the node what a power failure and a reboot do, calls boot, for example to load a driver, and starts
// the container runtime and the kubelet. It requires containerd. The control plane keeps running, as if it were on
// another machine.
func (n *Node) Reboot(ctx context.Context, boot func() error) error {
	if _, err := n.run(ctx, nil, "sh", "-c", fmt.Sprintf(halt, n.runtime.Name, n.kubeletDir)); err != nil {
		return fmt.Errorf("halting the node: %w", err)
	}
	if err := boot(); err != nil {
		return err
	}
	if err := n.StartRuntime(ctx); err != nil {
		return err
	}
	return n.startNode(ctx)
}
