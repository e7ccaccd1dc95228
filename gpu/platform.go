package gpu

// Platform is the kind of system that a node's GPUs belong to. It determines how they are discovered, and which device
// nodes and driver files containers require.
type Platform string

// The platforms. The zero Platform is a machine with PCI GPUs and the NVIDIA kernel driver, or a sandbox that uses the
// driver of such a machine.
const (
	// WSL2 is a Linux VM on Windows. NVML lists the GPUs of the Windows host, which share one device node.
	WSL2 Platform = "wsl2"
	// Jetson is a module with an integrated GPU. NVML supports it since JetPack 6, with few attributes.
	Jetson Platform = "jetson"
)
