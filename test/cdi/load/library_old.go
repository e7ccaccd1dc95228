//go:build old

package main

// The library's path until 0.5.
import "github.com/container-orchestrated-devices/container-device-interface/pkg/cdi"

func open(dir string) (cache, error) {
	return cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
}
