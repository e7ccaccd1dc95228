//go:build cdi0.5

package main

import "github.com/container-orchestrated-devices/container-device-interface/pkg/cdi"

func open(dir string) (*cdi.Cache, error) {
	return cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
}
