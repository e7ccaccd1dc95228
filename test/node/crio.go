package node

import (
	"fmt"

	"github.com/gpucdi/gpucdi/test/node/images"
	"github.com/gpucdi/gpucdi/test/node/tools"
)

// CRIO returns CRI-O 1.34 with runc instead of its default crun: Debian's crun does not support hybrid cgroup
// hierarchies.
func CRIO() Runtime {
	const (
		storage = "/var/lib/containers/storage"
		run     = "/run/containers/storage"
		runc    = "/usr/local/sbin/runc"
	)
	return Runtime{
		Name: "crio", Config: "/etc/crio/crio.conf",
		tool: tools.CRIO, socket: "/run/crio/crio.sock",
		settings: fmt.Sprintf(`[crio]
root = %q
runroot = %q
storage_driver = "overlay"

[crio.runtime]
cgroup_manager = "cgroupfs"
default_runtime = "runc"

[crio.runtime.runtimes.runc]
runtime_path = %q
runtime_root = "/run/runc"
monitor_path = "/usr/bin/conmon"
monitor_cgroup = "pod"

[crio.image]
pause_image = %q
pause_command = "/pause"
`, storage, run, runc, images.PauseName),
		scripts: map[string]string{runc: runcWrapper},
		ready:   []string{"crio", "status", "info"},
		load:    []string{"buildah", "--root", storage, "--runroot", run, "pull", "docker-archive:/dev/stdin"},
		bundles: run + "/overlay-containers/%s/userdata",
	}
}

// runcWrapper adapts the OCI spec to a machine without CAP_SYS_RESOURCE: it removes that capability from privileged
// containers, and replaces a negative oom_score_adj, which could not be set, with the wrapper's. containerd limits
// containers to its own capabilities and has restrict_oom_score_adj; CRI-O has neither limit.
const runcWrapper = `#!/bin/sh
set -e
for word; do
	case $before in
	--bundle) spec=$word/config.json ;;
	--process) spec=$word ;;
	esac
	before=$word
done
[ -z "$spec" ] || sed -i "$spec" \
	-e 's/"CAP_SYS_RESOURCE",//g' \
	-e "s/\"oomScoreAdj\": *-[0-9]*/\"oomScoreAdj\":$(cat /proc/self/oom_score_adj)/"
exec /usr/local/bin/runc "$@"
`
