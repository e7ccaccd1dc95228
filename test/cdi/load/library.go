//go:build !old

package main

import "tags.cncf.io/container-device-interface/pkg/cdi"

func open(dir string) (cache, error) {
	return cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
}
