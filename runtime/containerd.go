package runtime

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// defaultSpecDirs are the CDI library's own, which both runtimes take when
// nothing else is configured.
var defaultSpecDirs = []string{"/etc/cdi", "/var/run/cdi"}

// containerd reads the running daemon's configuration as it gives it in a
// verbose CRI status. The files on disk may say something else. From 2.4 on
// CDI cannot be turned off and enableCDI is gone; before 1.7 it is not known.
func containerd(info Info, config string) (Info, error) {
	var said struct {
		EnableCDI   *bool    `json:"enableCDI"`
		CDISpecDirs []string `json:"cdiSpecDirs"`
		Containerd  struct {
			DefaultRuntimeName string `json:"defaultRuntimeName"`
			Runtimes           map[string]struct {
				Options struct{ SystemdCgroup bool } `json:"options"`
			} `json:"runtimes"`
		} `json:"containerd"`
	}
	if err := json.Unmarshal([]byte(config), &said); err != nil {
		return Info{}, fmt.Errorf("reading the configuration that containerd %s gives: %w", info.Version, err)
	}
	info.CDI = major(info.Version) >= 2
	if said.EnableCDI != nil {
		info.CDI = *said.EnableCDI
	}
	info.SpecDirs = said.CDISpecDirs
	if len(info.SpecDirs) == 0 {
		info.SpecDirs = defaultSpecDirs
	}
	// runc then takes a slice alone for a parent, and containerd has none by itself.
	if said.Containerd.Runtimes[said.Containerd.DefaultRuntimeName].Options.SystemdCgroup {
		info.CgroupParent = "system.slice"
	}
	return info, nil
}

// major is the first number of "2.4.2" or "v1.7.35"; 0 when there is none.
func major(version string) int {
	first, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}
