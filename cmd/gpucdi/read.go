package main

import (
	"context"

	"github.com/gpucdi/gpucdi/gpu/driver"
	"github.com/gpucdi/gpucdi/internal/host"
)

// read finds the driver and reads its GPUs once; see driver.Read.
func read(ctx context.Context, where hostFlags, meanwhile func(host.DriverRoot)) (driver.Reading, error) {
	worker, err := workerPath()
	if err != nil {
		return driver.Reading{}, err
	}
	reading := driver.Read(ctx, driver.Config{Node: where.Node(), DriverRoot: where.DriverRoot, Library: where.Library, Worker: worker}, meanwhile)
	return reading, reading.Err
}
