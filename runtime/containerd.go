package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/containerd/api/services/introspection/v1"
	"google.golang.org/grpc"
)

// defaultSpecDirs are the defaults of the CDI library, which containerd and CRI-O use unless configured otherwise.
var defaultSpecDirs = []string{"/etc/cdi", "/var/run/cdi"}

// parseContainerdConfig reads the effective configuration from the verbose CRI status; the files on disk may differ.
// containerd 2.4 and later always have CDI enabled and no longer report enableCDI; 1.6 and earlier do not support CDI.
func parseContainerdConfig(info Info, config string) (Info, error) {
	var parsed struct {
		EnableCDI   *bool    `json:"enableCDI"`
		CDISpecDirs []string `json:"cdiSpecDirs"`
		Containerd  struct {
			DefaultRuntimeName string `json:"defaultRuntimeName"`
			Runtimes           map[string]struct {
				Options struct{ SystemdCgroup bool } `json:"options"`
			} `json:"runtimes"`
		} `json:"containerd"`
	}
	if err := json.Unmarshal([]byte(config), &parsed); err != nil {
		return Info{}, fmt.Errorf("decoding the config of containerd %s: %w", info.Version, err)
	}
	info.CDI = major(info.Version) >= 2
	if parsed.EnableCDI != nil {
		info.CDI = *parsed.EnableCDI
	}
	info.SpecDirs = parsed.CDISpecDirs
	if len(info.SpecDirs) == 0 {
		info.SpecDirs = defaultSpecDirs
	}
	// With the systemd cgroup driver, runc requires a slice as the parent, and containerd has no default.
	if parsed.Containerd.Runtimes[parsed.Containerd.DefaultRuntimeName].Options.SystemdCgroup {
		info.CgroupParent = "system.slice"
	}
	return info, nil
}

// major returns the major version, such as 2 for "2.4.2" and 1 for "v1.7.35"; 0 if the version is invalid.
func major(version string) int {
	first, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}

// explainNoCRI returns why containerd does not serve the CRI; nil if the reason is unknown.
func explainNoCRI(ctx context.Context, conn *grpc.ClientConn) error {
	response, err := introspection.NewIntrospectionClient(conn).Plugins(ctx, &introspection.PluginsRequest{})
	if err != nil {
		return nil // not containerd
	}
	var errs []error
	enabled := false
	for _, plugin := range response.GetPlugins() {
		name := plugin.GetType() + "." + plugin.GetID()
		enabled = enabled || name == criPlugin
		if (name == criPlugin || strings.HasPrefix(name, "io.containerd.cri.")) && plugin.GetInitErr() != nil {
			errs = append(errs, fmt.Errorf("containerd failed to load plugin %s: %s", name, plugin.GetInitErr().GetMessage()))
		}
	}
	if !enabled {
		errs = append(errs, fmt.Errorf(
			`CRI plugin disabled; remove "cri" and %q from disabled_plugins in the containerd config and restart containerd`,
			criPlugin))
	}
	return errors.Join(errs...)
}

// criPlugin is the plugin that serves the CRI in containerd 1.x and 2.x.
const criPlugin = "io.containerd.grpc.v1.cri"
