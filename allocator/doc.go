// Package allocator maps an inventory to extended resources, device IDs and CDI device names, tracks which devices may
// be held, and selects the preferred devices for a request by topology.
//
// Plan returns the desired resources. The ledger tracks each ID that was ever advertised until it is proved that no
// pod holds it: Next decides which IDs are available, the Gate grants them, and Offers returns the resources to
// advertise.
//
// A Resource is immutable and kept in memory, so Allocate and GetPreferredAllocation never wait for a driver or a
// disk. The package performs no I/O.
package allocator
