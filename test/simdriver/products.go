package simdriver

// Simulated products, with the values that NVML reports.

const mib = 1 << 20

var h100 = GPU{
	Name: "NVIDIA H100 80GB HBM3", Serial: "165092300", Brand: 14, Arch: 9, Major: 9, CCMinor: 0,
	Cores: 16896, DeviceID: 0x233010DE, Subsys: 0x16C110DE, Memory: 81559 * mib,
	MemoryNode: NotSupported, PCIeGen: 5, PCIeWidth: 16,
	Temperature: 31, Power: 71_200, PowerLimit: 700_000, Clock: 1980, MemoryClock: 2619,
	Fan: NotSupported, Counters: Counters{PCIeBits: 64},
	ECC: 1, RetiredSBE: NotSupported, RetiredDBE: NotSupported, RetiredPending: NotSupported,
	Persistence: 1, AddressingMode: 1,
}

var a100 = GPU{
	Name: "NVIDIA A100-SXM4-40GB", Serial: "156022000", Brand: 14, Arch: 7, Major: 8, CCMinor: 0,
	Cores: 6912, DeviceID: 0x20B010DE, Subsys: 0x134F10DE, Memory: 40960 * mib,
	MemoryNode: NotSupported, PCIeGen: 4, PCIeWidth: 16,
	Temperature: 29, Power: 52_100, PowerLimit: 400_000, Clock: 1410, MemoryClock: 1215,
	Fan: NotSupported, Counters: Counters{PCIeBits: 64},
	ECC: 1, RetiredSBE: NotSupported, RetiredDBE: NotSupported, RetiredPending: NotSupported,
	Persistence: 1,
}

var l40s = GPU{
	Name: "NVIDIA L40S", Serial: "132022300", Brand: 14, Arch: 8, Major: 8, CCMinor: 9,
	Cores: 18176, DeviceID: 0x26B910DE, Subsys: 0x185110DE, Memory: 46068 * mib,
	MemoryNode: NotSupported, PCIeGen: 4, PCIeWidth: 16,
	Temperature: 27, Power: 33_400, PowerLimit: 350_000, Clock: 2520, MemoryClock: 9001,
	Fan: NotSupported, Counters: Counters{PCIeBits: 64},
	ECC: 1, RetiredSBE: NotSupported, RetiredDBE: NotSupported, RetiredPending: NotSupported,
	Persistence: 1, MIGMode: NotSupported, MIGPending: NotSupported,
}

var gtx1060 = GPU{
	Name: "NVIDIA GeForce GTX 1060 6GB", Brand: 5, Arch: 4, Major: 6, CCMinor: 1,
	Cores: 1280, DeviceID: 0x1C0310DE, Subsys: 0x85AE1043, Memory: 6144 * mib,
	NUMANode: -1, MemoryNode: NotSupported, PCIeGen: 3, PCIeWidth: 16,
	Temperature: 38, Power: 6_200, PowerLimit: 120_000, Clock: 1911, MemoryClock: 4004,
	Fan: 42, Energy: NotSupported,
	ECC: NotSupported, RetiredSBE: NotSupported, RetiredDBE: NotSupported,
	RetiredPending: NotSupported, RemappedCor: NotSupported, RemappedUnc: NotSupported,
	RemappedPending: NotSupported, RemappedFailure: NotSupported,
	RecoveryAction: NotSupported, MIGMode: NotSupported, MIGPending: NotSupported,
}

// migProfile is a GPU instance profile of a product.
type migProfile struct {
	Name      string `nvsim:"name"`
	Index     int    `nvsim:"index"` // NVML_GPU_INSTANCE_PROFILE_…
	ID        int    `nvsim:"id"`    // argument of nvidia-smi mig -cgi
	Slices    int    `nvsim:"slices"`
	Instances int    `nvsim:"instances"` // maximum per GPU
	Size      int    `nvsim:"size"`      // memory slices, of 8
	SMs       int    `nvsim:"sms"`
	Copy      int    `nvsim:"copy"`
	Decoders  int    `nvsim:"decoders"`
	JPEGs     int    `nvsim:"jpegs"`
	OFAs      int    `nvsim:"ofas"`
	Memory    int    `nvsim:"memory"` // MiB
}

// migProfiles are the MIG profiles by product name. Other products do not support MIG.
var migProfiles = map[string][]migProfile{
	a100.Name: {
		{"1g.5gb", 0, 19, 1, 7, 1, 14, 1, 0, 0, 0, 4864},
		{"2g.10gb", 1, 14, 2, 3, 2, 28, 2, 1, 0, 0, 9984},
		{"3g.20gb", 2, 9, 3, 2, 4, 42, 3, 2, 0, 0, 20096},
		{"4g.20gb", 3, 5, 4, 1, 4, 56, 4, 2, 0, 0, 20096},
		{"7g.40gb", 4, 0, 7, 1, 8, 98, 7, 5, 1, 1, 40192},
		{"1g.5gb+me", 7, 20, 1, 1, 1, 14, 1, 1, 1, 1, 4864},
		{"1g.10gb", 9, 15, 1, 4, 2, 14, 1, 1, 0, 0, 9984},
	},
	h100.Name: {
		{"1g.10gb", 0, 19, 1, 7, 1, 16, 1, 1, 1, 0, 9984},
		{"2g.20gb", 1, 14, 2, 3, 2, 32, 2, 2, 2, 0, 20096},
		{"3g.40gb", 2, 9, 3, 2, 4, 60, 3, 3, 3, 0, 40448},
		{"4g.40gb", 3, 5, 4, 1, 4, 64, 4, 4, 4, 0, 40448},
		{"7g.80gb", 4, 0, 7, 1, 8, 132, 8, 7, 7, 1, 81152},
		{"1g.10gb+me", 7, 20, 1, 1, 1, 16, 1, 1, 1, 1, 9984},
		{"1g.20gb", 9, 15, 1, 4, 2, 26, 1, 1, 1, 0, 20096},
	},
}
