package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpucdi/gpucdi/test/box"
)

// ServiceIP is the address of the API server in the box for pods, with port 443. It is on the loopback interface and the
// API server listens on the service's port, so that no kube-proxy is needed.
const ServiceIP = "10.96.0.1"

// Other addresses inside the box.
const (
	nodeIP      = "10.100.0.1"
	serviceCIDR = "10.96.0.0/24"
	podCIDR     = "10.244.0.0/24"
)

// etc is the directory of the node's configuration in the box.
const etc = "/etc/kubernetes"

// sysctls are required by the kubelet. They are not namespaced, so the box mounts files over them: the kubelet accepts
// these values and does not change the machine's sysctls.
var sysctls = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

var cniConfig = fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "box",
  "plugins": [{
    "type": "bridge",
    "bridge": "cni0",
    "isGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}
  }]
}
`, podCIDR)

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: ` + etc + `/ca.crt}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
protectKernelDefaults: true
localStorageCapacityIsolation: false
# The machine's disk may be fuller than the default thresholds allow.
evictionHard: {memory.available: 50Mi}
imageGCHighThresholdPercent: 100
# The default is 10s. Device capacity is reported with the node's status.
nodeStatusUpdateFrequency: 1s
# Tests make containers exit. The default is 5 minutes.
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
featureGates: {KubeletCrashLoopBackOffMax: true}
resolvConf: ""
`

// registriesConfig lets CRI-O resolve short image names.
const registriesConfig = `unqualified-search-registries = ["docker.io"]
`

// configure writes the certificates and the configuration of every component into the box.
func configure(b *box.Box, r Runtime) error {
	files, err := credentials()
	if err != nil {
		return err
	}
	files[r.Config] = []byte(r.settings)
	files["/etc/containers/registries.conf"] = []byte(registriesConfig)
	files["/etc/cni/net.d/10-box.conflist"] = []byte(cniConfig)
	files[etc+"/kubelet.yaml"] = []byte(kubeletConfig + "containerRuntimeEndpoint: unix://" + r.socket + "\n")
	for name, data := range files {
		if err := write(b.Path(name), data, 0o600); err != nil {
			return err
		}
	}
	for name, script := range r.scripts {
		if err := write(b.Path(name), []byte(script), 0o700); err != nil {
			return err
		}
	}
	return nil
}

func write(file string, data []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("configuring the node: %w", err)
	}
	if err := os.WriteFile(file, data, mode); err != nil {
		return fmt.Errorf("configuring the node: %w", err)
	}
	return nil
}

// credentials generates the cluster's certificates, keys and kubeconfigs, by path in the box.
func credentials() (map[string][]byte, error) {
	ca, err := newAuthority()
	if err != nil {
		return nil, err
	}
	_, serviceAccounts, err := newKey()
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{etc + "/ca.crt": ca.pem, etc + "/sa.key": serviceAccounts}
	pairs := []struct {
		file, user, group string
		hosts             []string
	}{
		{"apiserver", "kube-apiserver", "", []string{
			"localhost", "127.0.0.1", nodeIP, ServiceIP, "kubernetes", "kubernetes.default", "kubernetes.default.svc"}},
		{"apiserver-kubelet", "kube-apiserver-kubelet-client", "system:masters", nil},
	}
	for _, p := range pairs {
		issued, err := ca.issue(p.user, p.group, p.hosts...)
		if err != nil {
			return nil, err
		}
		files[etc+"/"+p.file+".crt"], files[etc+"/"+p.file+".key"] = issued.cert, issued.key
	}
	users := []struct{ file, user, group string }{
		{adminConfig, "admin", "system:masters"},
		{etc + "/controller-manager.conf", "system:kube-controller-manager", ""},
		{etc + "/scheduler.conf", "system:kube-scheduler", ""},
		{etc + "/kubelet.conf", "system:node:" + Name, "system:nodes"},
	}
	for _, u := range users {
		if files[u.file], err = ca.kubeconfig(u.user, u.group); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// EmulateCgroup2 makes the cgroups of pods available at the paths that they have with cgroup v2. On a machine with
// controllers of cgroup v1, the box has only v1. The emulated hierarchy has the controller dmem. undo ends it.
func (n *Node) EmulateCgroup2(ctx context.Context) (undo func(context.Context) error, err error) {
	script := func(ctx context.Context, script string) error {
		if _, err := n.run(ctx, nil, "sh", "-c", script); err != nil {
			return fmt.Errorf("emulating cgroup v2: %w", err)
		}
		return nil
	}
	undo = func(ctx context.Context) error {
		return script(ctx, "[ ! -L /sys/fs/cgroup/kubepods ] || rm /sys/fs/cgroup/kubepods /sys/fs/cgroup/cgroup.controllers")
	}
	return undo, script(ctx, "[ -e /sys/fs/cgroup/cgroup.controllers ] || "+
		"{ ln -s memory/kubepods /sys/fs/cgroup/kubepods && echo dmem > /sys/fs/cgroup/cgroup.controllers; }")
}

// prepareBox adds the addresses, the CNI plugins and the sysctls.
func (n *Node) prepareBox(ctx context.Context) error {
	script := []string{
		"set -e",
		"ip address add " + nodeIP + "/32 dev lo",
		"ip address add " + ServiceIP + "/32 dev lo",
		"mkdir -p /run/sysctl /opt/cni",
		"ln -s /usr/lib/cni /opt/cni/bin",
		// CRI-O sets limits for every controller in /proc/cgroups. Hide those that are not mounted.
		"[ -e /sys/fs/cgroup/cgroup.controllers ] || { awk '$2 != 0' /proc/cgroups > /run/cgroups && " +
			"mount --bind /run/cgroups /proc/cgroups; }",
	}
	for name, value := range sysctls {
		file := "/run/sysctl/" + strings.ReplaceAll(name, "/", ".")
		script = append(script, "echo "+value+" > "+file, "mount --bind "+file+" /proc/sys/"+name)
	}
	_, err := n.run(ctx, nil, "sh", "-c", strings.Join(script, "\n"))
	if err != nil {
		return fmt.Errorf("preparing the box for the kubelet: %w", err)
	}
	return nil
}
