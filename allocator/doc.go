// Package allocator turns an inventory into what the kubelet is offered: the
// resources, their device IDs, and the CDI device name that each ID stands
// for. It also says which devices suit a request best.
//
// Plan says what is wanted. The ledger tracks each ID that was ever given out, and what it stands for,
// until it is proved that no pod holds it: Next decides what is available, the Gate grants it, and
// Offers is what the kubelet is told.
//
// A Resource is immutable and answers from memory, so the kubelet's calls
// never wait for a driver or a disk. The package knows no gRPC and does no
// I/O.
package allocator
