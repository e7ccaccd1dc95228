package simdriver

import (
	"fmt"
	"slices"
	"time"
)

// NotSupported, as the value of a number in GPU, makes NVML return
// NVML_ERROR_NOT_SUPPORTED for that number. RetiredSBE and RemappedCor also
// determine it for the lists of retired pages and remapped rows. Minor, Major
// and CCMinor must be set.
const NotSupported = -1

// State is the state of the simulated driver. It is written to the library, and
// to a file for Open.
type State struct {
	// Version is the version of the kernel module and the library.
	Version string
	// Replaces is the version whose files an upgrade has not removed yet; empty: none.
	Replaces string
	// CUDA is the CUDA version as in NVML: 13000 for 13.0.
	CUDA int
	// Confidential enables confidential computing, ProtectedPCIe the multi-GPU mode of
	// that name.
	Confidential, ProtectedPCIe bool
	// Unloaded is true while the kernel module is not loaded.
	Unloaded bool

	GPUs   []GPU
	Faults []Fault

	// Processes are reported in addition to processes that allocate memory with libcuda.
	Processes []Process

	// Events are the latest events, which event sets deliver once; see Raise.
	Events []Event
}

// GPU is a simulated GPU. The tags name the keys in the state of the library.
type GPU struct {
	UUID     string `nvsim:"uuid"`
	Minor    int    `nvsim:"minor"` // the N of /dev/nvidiaN
	BusID    string `nvsim:"bus"`   // in NVML format: "00000000:18:00.0"
	Name     string `nvsim:"name"`
	Serial   string `nvsim:"serial"`   // empty: not supported
	Brand    int    `nvsim:"brand"`    // NVML_BRAND_…
	Arch     int    `nvsim:"arch"`     // NVML_DEVICE_ARCH_…
	Major    int    `nvsim:"major"`    // of the compute capability
	CCMinor  int    `nvsim:"cc_minor"` // of the compute capability
	Cores    int    `nvsim:"cores"`
	DeviceID uint32 `nvsim:"device"` // PCI device and vendor: 0x233010DE
	Subsys   uint32 `nvsim:"subsystem"`
	Memory   uint64 `nvsim:"memory"` // bytes
	Used     uint64 `nvsim:"used"`   // bytes

	// NUMANode is the NUMA node in sysfs; -1: none. MemoryNode is the node of the GPU's
	// own memory in NVML, on platforms with coherent memory.
	NUMANode   int
	MemoryNode int `nvsim:"numa"`
	PCIe       PCIe

	PCIeGen   int `nvsim:"pcie_gen"`
	PCIeWidth int `nvsim:"pcie_width"`

	Utilization       int `nvsim:"util"`               // percent
	MemoryUtilization int `nvsim:"util_memory"`        // percent
	Temperature       int `nvsim:"temperature"`        // °C
	Power             int `nvsim:"power"`              // mW
	PowerLimit        int `nvsim:"power_limit"`        // mW
	Clock             int `nvsim:"clock"`              // MHz
	MemoryClock       int `nvsim:"clock_memory"`       // MHz
	ClocksEvents      int `nvsim:"clocks_events"`      // bit mask of nvmlClocksEventReason…
	Encoder           int `nvsim:"encoder"`            // percent
	Decoder           int `nvsim:"decoder"`            // percent
	Fan               int `nvsim:"fan"`                // percent
	MemoryTemperature int `nvsim:"memory_temperature"` // °C
	Energy            int `nvsim:"energy"`             // mJ
	Counters          Counters
	Activity          Activity

	ECC             int `nvsim:"ecc"` // 1 on, 0 off
	ECCCorrected    int `nvsim:"ecc_corrected"`
	ECCUncorrected  int `nvsim:"ecc_uncorrected"`
	RetiredSBE      int `nvsim:"retired_sbe"`
	RetiredDBE      int `nvsim:"retired_dbe"`
	RetiredPending  int `nvsim:"retired_pending"`
	RemappedCor     int `nvsim:"remapped_cor"`
	RemappedUnc     int `nvsim:"remapped_unc"`
	RemappedPending int `nvsim:"remapped_pending"`
	RemappedFailure int `nvsim:"remapped_failure"`
	RecoveryAction  int `nvsim:"recovery"`    // RecoveryNone, …
	Persistence     int `nvsim:"persistence"` // 1 on, 0 off
	AddressingMode  int `nvsim:"addressing"`  // NVML_DEVICE_ADDRESSING_MODE_…

	Cluster string `nvsim:"cluster"` // UUID of the multi-node NVLink fabric, 32 hex digits; empty: not joined
	Clique  int    `nvsim:"clique"`

	// HostDriver is the version and branch of the hypervisor's driver, which a virtual
	// GPU has in its PCI configuration space; empty: not virtual.
	HostDriver [2]string

	Lost bool `nvsim:"lost"` // fallen off the bus

	MIGMode    int `nvsim:"mig"` // 1 on, 0 off, NotSupported
	MIGPending int `nvsim:"mig_pending"`
	MIG        []MIGDevice
	Links      []Link
}

// Recovery actions of a GPU, NVML_GPU_RECOVERY_ACTION_….
const (
	RecoveryNone = iota
	RecoveryReset
	RecoveryReboot
	RecoveryDrainP2P
	RecoveryDrainAndReset
	RecoveryIMEXDomain
	RecoveryBusReset
	RecoverySystemReboot
)

// Counters are counters of a GPU.
type Counters struct {
	SWPower         int `nvsim:"sw_power_ns"`   // ns in which clocks were limited
	SWThermal       int `nvsim:"sw_thermal_ns"` // ns in which clocks were limited
	HWThermal       int `nvsim:"hw_thermal_ns"` // ns in which clocks were limited
	HWPowerBrake    int `nvsim:"hw_brake_ns"`   // ns in which clocks were limited
	PCIeTransmitted int `nvsim:"pcie_tx"`       // bytes
	PCIeReceived    int `nvsim:"pcie_rx"`       // bytes
	PCIeBits        int `nvsim:"pcie_bits"`     // size of the byte counters: 64; any other value: 32
	PCIeReplays     int `nvsim:"pcie_replays"`
	PCIeCorrectable int `nvsim:"pcie_correctable"`
	PCIeNonFatal    int `nvsim:"pcie_nonfatal"`
	PCIeFatal       int `nvsim:"pcie_fatal"`

	// Supported only by GPUs with Links.
	NVLinkTransmitted int `nvsim:"nvlink_tx"` // KiB
	NVLinkReceived    int `nvsim:"nvlink_rx"` // KiB
	NVLinkCRCFlit     int `nvsim:"nvlink_flit"`
	NVLinkCRCData     int `nvsim:"nvlink_data"`
	NVLinkReplays     int `nvsim:"nvlink_replays"`
	NVLinkRecoveries  int `nvsim:"nvlink_recoveries"`
}

// Activity has the metrics of GPU performance monitoring (GPM) for Hopper and later GPUs: percent, and rates in MiB/s.
type Activity struct {
	SM             int `nvsim:"sm_active"`
	Occupancy      int `nvsim:"occupancy"`
	Tensor         int `nvsim:"tensor_active"`
	DRAM           int `nvsim:"dram_active"`
	PCIeTransmit   int `nvsim:"pcie_tx_rate"`
	PCIeReceive    int `nvsim:"pcie_rx_rate"`
	NVLinkTransmit int `nvsim:"nvlink_tx_rate"`
	NVLinkReceive  int `nvsim:"nvlink_rx_rate"`
}

// Process is a process that uses a GPU.
type Process struct {
	Device      string `nvsim:"device"` // UUID of the GPU or MIG device
	PID         int    `nvsim:"pid"`    // reported to callers in any PID namespace, as by older drivers
	Memory      uint64 `nvsim:"memory"` // bytes; 0: not listed, unless it allocates memory with libcuda
	Utilization int    `nvsim:"util"`   // percent; 0: no samples
	Graphics    bool   `nvsim:"graphics"`
}

// PCIe is the path from the root down to a GPU. The first level at which two GPUs
// differ determines their common ancestor in NVML.
type PCIe struct {
	Node   int `nvsim:"node"`   // differs: SYS
	Bridge int `nvsim:"bridge"` // differs: NODE
	Root   int `nvsim:"root"`   // differs: PHB
	Switch int `nvsim:"sw"`     // differs: PXB; the same: PIX
}

// Link is one NVLink of a GPU.
type Link struct {
	Index   int    `nvsim:"index"`
	Version int    `nvsim:"version"`
	Active  bool   `nvsim:"active"`
	Remote  string `nvsim:"remote"` // PCI bus ID of the other end
	Type    int    `nvsim:"type"`   // LinkToGPU or LinkToSwitch
}

// Types of the device at the other end of a Link.
const (
	LinkToGPU    = 0
	LinkToSwitch = 2
)

// MIGDevice is a compute instance in a GPU instance.
type MIGDevice struct {
	UUID          string `nvsim:"uuid"`
	GPUInstance   int    `nvsim:"gi"`
	CI            int    `nvsim:"ci"`        // compute instance ID
	Profile       int    `nvsim:"profile"`   // NVML_GPU_INSTANCE_PROFILE_…
	Start         int    `nvsim:"start"`     // first memory slice
	ComputeSlices int    `nvsim:"ci_slices"` // of the compute instance
	ComputeStart  int    `nvsim:"ci_start"`
	Used          uint64 `nvsim:"used"` // bytes
}

// Event is an event that the driver reports once.
type Event struct {
	Seq  int    `nvsim:"seq"` // set by Raise
	GPU  string `nvsim:"gpu"`
	Type int    `nvsim:"type"` // EventXID or another NVML event type
	Data int    `nvsim:"data"` // the XID
	GI   int    `nvsim:"gi"`   // NotSupported: the whole GPU
	CI   int    `nvsim:"ci"`
}

// EventXID is NVML's event type for critical XID errors.
const EventXID = 0x8

// maxEvents is the capacity of the library. A reader that is further behind loses
// the oldest events, as with a real driver.
const maxEvents = 64

// Fault makes calls fail. The first matching fault of a call applies; an empty GPU
// or Func matches any.
type Fault struct {
	GPU    string        `nvsim:"gpu"`
	Func   string        `nvsim:"func"` // e.g. "nvmlDeviceGetUUID", which also matches its _v2
	Return int           `nvsim:"ret"`  // NVML error; 0: none
	Hang   time.Duration `nvsim:"hang_ms"`
	Crash  bool          `nvsim:"crash"` // the process aborts

	// Answer is the value that nvmlDeviceGetUUID or nvmlDeviceGetMinorNumber returns
	// if Answers is set, which requires GPU. If Answers is set and Answer is not empty,
	// nvmlDeviceSetMemoryLimits_v1 succeeds without setting a limit.
	Answer  string `nvsim:"answer"`
	Answers bool   `nvsim:"answers"`
}

// GPU returns the GPU with a UUID, for changes in place; nil if there is none.
func (s *State) GPU(uuid string) *GPU {
	i := slices.IndexFunc(s.GPUs, func(g GPU) bool { return g.UUID == uuid })
	if i < 0 {
		return nil
	}
	return &s.GPUs[i]
}

// Raise adds an event.
func (s *State) Raise(e Event) {
	e.Seq = 1
	if n := len(s.Events); n > 0 {
		e.Seq = s.Events[n-1].Seq + 1
	}
	s.Events = append(s.Events, e)
	s.Events = s.Events[max(0, len(s.Events)-maxEvents):]
}

func (s *State) clone() State {
	c := *s
	c.GPUs = slices.Clone(s.GPUs)
	for i := range c.GPUs {
		c.GPUs[i].MIG = slices.Clone(c.GPUs[i].MIG)
		c.GPUs[i].Links = slices.Clone(c.GPUs[i].Links)
	}
	c.Faults = slices.Clone(s.Faults)
	c.Processes = slices.Clone(s.Processes)
	c.Events = slices.Clone(s.Events)
	return c
}

// check returns an error if GPUs share an identity or a fault refers to a missing GPU. The limits of src/nvml/state.h,
// such as 32 GPUs, are not checked: a library with a larger state returns NVML_ERROR_UNKNOWN.
func (s *State) check() error {
	seen := map[any]string{}
	for _, g := range s.GPUs {
		for _, key := range []any{g.UUID, g.Minor, g.BusID} {
			if other, taken := seen[key]; taken {
				return fmt.Errorf("GPUs %s and %s share %v", other, g.UUID, key)
			}
			seen[key] = g.UUID
		}
	}
	for _, f := range s.Faults {
		if f.GPU != "" && s.GPU(f.GPU) == nil {
			return fmt.Errorf("fault refers to missing GPU %s", f.GPU)
		}
	}
	return nil
}
