// Package nvfm has the declarations of NVIDIA's bindings of the Fabric Manager that NVIDIA's DRA driver refers to, so that
// the driver can be built without them. All calls fail; the driver makes none unless its feature gate
// FabricManagerPartitioning is on.
package nvfm

import "errors"

// Return is the result of a call.
type Return error

// SUCCESS is the result of a successful call.
var SUCCESS Return

var errAbsent Return = errors.New("built without the bindings of the Fabric Manager")

// Interface is the library of the Fabric Manager.
type Interface interface {
	Init() Return
	Shutdown() Return
	Connect(...ConnectOption) (Handle, Return)
}

// Handle is a connection to the Fabric Manager.
type Handle interface {
	GetSupportedFabricPartitions() (FabricPartitionList, Return)
	ActivateFabricPartition(FabricPartitionId) Return
	DeactivateFabricPartition(FabricPartitionId) Return
	Disconnect() Return
}

// LibraryOption and ConnectOption have no effect.
type (
	LibraryOption struct{}
	ConnectOption struct{}
)

// FabricPartitionId identifies a partition.
type FabricPartitionId uint32

// FabricPartitionList is a list of partitions. It is always empty.
type FabricPartitionList struct {
	NumPartitions uint32
	PartitionInfo [0]struct {
		PartitionId, IsActive, NumGpus uint32
		GpuInfo                        [0]struct {
			PhysicalId, NumNvLinksAvailable, MaxNumNvLinks, NvlinkLineRateMBps uint32
			Uuid, PciBusId                                                     [1]int8
		}
	}
}

type absent struct{}

func (absent) Init() Return                              { return errAbsent }
func (absent) Shutdown() Return                          { return errAbsent }
func (absent) Connect(...ConnectOption) (Handle, Return) { return nil, errAbsent }

// New returns a library without the Fabric Manager.
func New(...LibraryOption) Interface { return absent{} }

// WithLibraryPath returns an option without effect.
func WithLibraryPath(string) LibraryOption { return LibraryOption{} }

// WithUnixSocket returns an option without effect.
func WithUnixSocket(string) ConnectOption { return ConnectOption{} }

// WithAddress returns an option without effect.
func WithAddress(string) ConnectOption { return ConnectOption{} }

// WithTimeoutMs returns an option without effect.
func WithTimeoutMs(uint32) ConnectOption { return ConnectOption{} }
