// Package allocator maps an inventory to outlets, device IDs and CDI device names. An outlet is an extended resource or
// the ResourceSlices of the node. The package also tracks which devices may be held, and selects the preferred devices
// for a request by topology.
//
// Plan returns the desired outlets. The ledger has an entry for each ID of an outlet. An entry that is no longer wanted
// stays until it is proved that no pod holds it. Next decides which entries are available, the Gate grants them to
// containers and claims, and Offers returns the outlets to advertise.
//
// A Resource is immutable and kept in memory, so Allocate and GetPreferredAllocation never wait for a driver or a
// disk. The package performs no I/O.
package allocator
