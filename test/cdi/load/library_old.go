//go:build old

package main

// The module path of the CDI library before 0.6.
import "github.com/container-orchestrated-devices/container-device-interface/pkg/cdi"

func open(dir string) (cache, error) {
	return cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
}
