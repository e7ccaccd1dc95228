package main

import (
	"context"

	"github.com/gpucdi/gpucdi/gpu/driver"
)

// readInventory reads the inventory of the node through the driver worker; see driver.Read.
func readInventory(ctx context.Context, host hostFlags) (driver.Snapshot, error) {
	worker, err := workerPath()
	if err != nil {
		return driver.Snapshot{}, err
	}
	snapshot := driver.Read(ctx, driver.Config{Node: host.root(), DriverRoot: host.driverRoot, Library: host.library, Worker: worker})
	return snapshot, snapshot.Err
}
