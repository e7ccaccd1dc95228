package cdi

import (
	"errors"

	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/config"
	"github.com/gpucdi/gpucdi/internal/host"
)

// Files are what a driver has for containers, whichever GPUs they get.
type Files struct {
	driver    gpu.Driver
	libraries []Library
	binds     []Bind
	err       error // all that is missing
}

func findFiles(root host.DriverRoot, driver gpu.Driver, features config.Features) Files {
	libs, errLibs := libraries(root, driver, features)
	binds, errBinds := findSought(root, features)
	return Files{driver, libs, binds, errors.Join(errLibs, errBinds)}
}

// LookAhead finds the files of the driver that the node's kernel has loaded, which takes
// about as long as NVML takes to tell of that driver and its GPUs. Inspect looks again
// where NVML tells of another.
func LookAhead(node host.Root, root host.DriverRoot, features config.Features) Files {
	version, err := kernelVersion(node)
	if err != nil {
		return Files{}
	}
	return findFiles(root, gpu.Driver{Version: version}, features)
}

// of says whether they are the files of that driver.
func (f Files) of(driver gpu.Driver) bool {
	return f.driver.Version == driver.Version && f.driver.Confidential == driver.Confidential
}
