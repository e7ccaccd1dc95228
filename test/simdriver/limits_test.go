package simdriver_test

import (
	"os/exec"
	"testing"

	"github.com/gpucdi/gpucdi/test/simdriver"
)

const cudaOutOfMemory = "2"

// A program in a cgroup namespace does not see the path of its cgroup. The programs have the hierarchy of cgroup v2 at
// its usual path, also on a machine with hierarchies of v1.
func TestMemoryLimitInCgroupNamespace(t *testing.T) {
	const (
		mount  = "umount --lazy /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && "
		cgroup = "/sys/fs/cgroup/gpucdi-simdriver-test"
		enter  = "echo 0 > " + cgroup + "/cgroup.procs && exec unshare --cgroup --mount sh -ec '" + mount
	)
	shell := func(script string) *exec.Cmd {
		return exec.Command("unshare", "--mount", "sh", "-ec", mount+script, buildProbe(t))
	}
	must(t, shell("mkdir -p "+cgroup).Run())
	t.Cleanup(func() { must(t, shell("rmdir "+cgroup).Run()) })
	profile := simdriver.H100x8()
	profile.Version = "615.71.09"
	d := install(t, profile)

	admin := startProbeCommand(t, d, shell(`exec "$0"`), "CGROUP="+cgroup)
	limited := startProbeCommand(t, d, shell(enter+`exec "$0"' "$0"`))
	second := startProbeCommand(t, d, shell(enter+`exec "$0"' "$0"`))
	other := startProbeCommand(t, d, shell(`exec unshare --cgroup --mount sh -ec '`+mount+`exec "$0"' "$0"`))
	admin.open(8)
	admin.want("limit 0 1000", "0")
	limited.want("alloc 600", "0")
	second.want("alloc 401", cudaOutOfMemory)
	second.want("alloc 400", "0")
	limited.want("alloc 1", cudaOutOfMemory)
	other.want("alloc 2000", "0")
}
