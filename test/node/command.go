package node

import (
	"fmt"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubectl/pkg/cmd/annotate"
	"k8s.io/kubectl/pkg/cmd/apply"
	"k8s.io/kubectl/pkg/cmd/create"
	"k8s.io/kubectl/pkg/cmd/delete"
	"k8s.io/kubectl/pkg/cmd/describe"
	"k8s.io/kubectl/pkg/cmd/exec"
	"k8s.io/kubectl/pkg/cmd/get"
	"k8s.io/kubectl/pkg/cmd/label"
	"k8s.io/kubectl/pkg/cmd/logs"
	"k8s.io/kubectl/pkg/cmd/patch"
	"k8s.io/kubectl/pkg/cmd/rollout"
	"k8s.io/kubectl/pkg/cmd/scale"
	"k8s.io/kubectl/pkg/cmd/set"
	"k8s.io/kubectl/pkg/cmd/taint"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/cmd/wait"
)

// newKubectl returns the command of kubectl with a name, below a root command. cobra keeps the flags of each command for
// ever, and with them what their completions refer to. So only this command is created, not all of kubectl, and it shares
// its clients with others: with all of kubectl, a call of get or describe keeps 0.7 MB.
func newKubectl(name string, shared cmdutil.Factory, streams genericiooptions.IOStreams) (*cobra.Command, error) {
	root := &cobra.Command{Use: "kubectl", SilenceUsage: true, SilenceErrors: true}
	f := namespaced{shared, root.PersistentFlags().StringP("namespace", "n", "", "")}
	commands := map[string]func() *cobra.Command{
		"annotate": func() *cobra.Command { return annotate.NewCmdAnnotate(root.Use, f, streams) },
		"apply":    func() *cobra.Command { return apply.NewCmdApply(root.Use, f, streams) },
		"create":   func() *cobra.Command { return create.NewCmdCreate(f, streams) },
		"delete":   func() *cobra.Command { return delete.NewCmdDelete(f, streams) },
		"describe": func() *cobra.Command { return describe.NewCmdDescribe(root.Use, f, streams) },
		"exec":     func() *cobra.Command { return exec.NewCmdExec(f, streams) },
		"get":      func() *cobra.Command { return get.NewCmdGet(root.Use, f, streams) },
		"label":    func() *cobra.Command { return label.NewCmdLabel(f, streams) },
		"logs":     func() *cobra.Command { return logs.NewCmdLogs(f, streams) },
		"patch":    func() *cobra.Command { return patch.NewCmdPatch(f, streams) },
		"rollout":  func() *cobra.Command { return rollout.NewCmdRollout(root.Use, f, streams) },
		"scale":    func() *cobra.Command { return scale.NewCmdScale(f, streams) },
		"set":      func() *cobra.Command { return set.NewCmdSet(f, streams) },
		"taint":    func() *cobra.Command { return taint.NewCmdTaint(f, streams) },
		"wait":     func() *cobra.Command { return wait.NewCmdWait(f, streams) },
	}
	if command := commands[name]; command != nil {
		root.AddCommand(command())
		return root, nil
	}
	return nil, fmt.Errorf("kubectl has no command %q here; add it to newKubectl", name)
}

// newFactory returns the clients of all kubectl commands for a cluster.
func newFactory(kubeconfig, cacheDir string) cmdutil.Factory {
	flags := genericclioptions.NewConfigFlags(true).WithDiscoveryBurst(300).WithDiscoveryQPS(50)
	flags.KubeConfig, flags.CacheDir = &kubeconfig, &cacheDir
	return cmdutil.NewFactory(cmdutil.NewMatchVersionFlags(&clients{ConfigFlags: flags})) // sets the version for exec
}

// clients keeps the API resources of a cluster in memory: kubectl reads all of them from its cache on disk in each
// command, which takes most of the CPU time of get.
type clients struct {
	*genericclioptions.ConfigFlags

	mu        sync.Mutex
	discovery discovery.CachedDiscoveryInterface
}

// ToDiscoveryClient implements genericclioptions.RESTClientGetter.
func (c *clients) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.discovery != nil {
		return c.discovery, nil
	}
	onDisk, err := c.ConfigFlags.ToDiscoveryClient()
	if err == nil {
		c.discovery = memory.NewMemCacheClient(onDisk)
	}
	return c.discovery, err
}

// ToRESTMapper implements genericclioptions.RESTClientGetter.
func (c *clients) ToRESTMapper() (meta.RESTMapper, error) {
	client, err := c.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	return restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(client), client, nil), nil
}

// namespaced is a factory for a command with a namespace of its own, unless that is empty.
type namespaced struct {
	cmdutil.Factory
	namespace *string
}

// ToRawKubeConfigLoader implements cmdutil.Factory.
func (f namespaced) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return namespacedConfig{f.Factory.ToRawKubeConfigLoader(), *f.namespace}
}

// config is clientcmd.ClientConfig under another name, since that is also the name of a method.
type config interface{ clientcmd.ClientConfig }

type namespacedConfig struct {
	config
	namespace string
}

// Namespace implements clientcmd.ClientConfig.
func (c namespacedConfig) Namespace() (name string, set bool, err error) {
	if c.namespace != "" {
		return c.namespace, true, nil
	}
	return c.config.Namespace()
}
