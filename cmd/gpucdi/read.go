package main

import (
	"context"

	"github.com/gpucdi/gpucdi/gpu/driver"
)

// read returns the inventory of the node; see driver.Read.
func read(ctx context.Context, where hostFlags) (driver.Reading, error) {
	worker, err := workerPath()
	if err != nil {
		return driver.Reading{}, err
	}
	reading := driver.Read(ctx, driver.Config{Node: where.Node(), DriverRoot: where.DriverRoot, Library: where.Library, Worker: worker})
	return reading, reading.Err
}
