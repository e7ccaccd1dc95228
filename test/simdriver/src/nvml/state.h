/*
 * The state of the simulated driver, which is stored at the end of the library
 * file. A negative number means that the product does not support the value
 * (NVML_ERROR_NOT_SUPPORTED).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { SLOT_SIZE = 96 * 1024, MAX_GPUS = 32, TEXT_LEN = 64 };

struct driver {
	char library[TEXT_LEN]; /* version of this library */
	char module[TEXT_LEN];  /* version of the kernel module; empty: not loaded */
	long long cuda;         /* 13000 for CUDA 13.0 */
	long long confidential, protected_pcie; /* 0 off, 1 on */
};

struct gpu {
	char uuid[TEXT_LEN], bus[TEXT_LEN], name[TEXT_LEN];
	char serial[TEXT_LEN];                   /* empty: not supported */
	long long minor, lost;
	long long brand, arch, major, cc_minor, cores, device, subsystem;
	long long memory, used;                  /* bytes */
	long long mig, mig_pending;              /* 0 off, 1 on */
	long long numa;                          /* NUMA node of the GPU's own memory */
	/* PCIe path; the first level that differs determines the common ancestor of two GPUs. */
	long long node, bridge, root, sw;
	long long pcie_gen, pcie_width;
	long long util, util_memory, temperature, power, power_limit; /* %, %, °C, mW, mW */
	long long clock, clock_memory;           /* MHz */
	long long clocks_events;                 /* bit mask of reasons */
	long long sw_power_ns, sw_thermal_ns, hw_thermal_ns, hw_brake_ns; /* time that clocks were limited */
	long long encoder, decoder, fan;         /* % */
	long long memory_temperature;            /* °C */
	long long energy;                        /* mJ */
	long long pcie_tx, pcie_rx, pcie_bits;   /* bytes; pcie_bits: size of both counters */
	long long pcie_replays, pcie_correctable, pcie_nonfatal, pcie_fatal;
	long long nvlink_tx, nvlink_rx;          /* KiB */
	long long nvlink_flit, nvlink_data, nvlink_replays, nvlink_recoveries;
	long long sm_active, occupancy, tensor_active, dram_active; /* % */
	long long pcie_tx_rate, pcie_rx_rate, nvlink_tx_rate, nvlink_rx_rate; /* MiB/s */
	long long ecc, ecc_corrected, ecc_uncorrected;
	long long retired_sbe, retired_dbe, retired_pending;
	long long remapped_cor, remapped_unc, remapped_pending, remapped_failure;
	long long recovery;                      /* GPU recovery action */
	long long persistence, addressing;
	char cluster[TEXT_LEN];                  /* fabric UUID, 32 hex digits; empty: not joined */
	long long clique;
};

struct link {
	char gpu[TEXT_LEN];
	char remote[TEXT_LEN];                   /* PCI bus ID of the other end */
	long long index, version, active;
	long long type;                          /* 0 GPU, 2 NVSwitch */
};

/* A GPU instance profile of a product. */
struct profile {
	char product[TEXT_LEN], name[TEXT_LEN];  /* "NVIDIA A100-SXM4-40GB", "1g.5gb" */
	long long index, id, slices, instances, size; /* size: memory slices */
	long long sms, copy, decoders, encoders, jpegs, ofas, memory; /* MiB */
};

struct mig {
	char uuid[TEXT_LEN], gpu[TEXT_LEN];
	long long gi, ci, profile, start;        /* profile: index in struct profile */
	long long ci_slices, ci_start;
	long long used;                          /* bytes */
};

/* A process that a test adds to the processes that allocate memory with libcuda. */
struct process {
	char device[TEXT_LEN];                   /* UUID of the GPU or MIG device */
	long long pid, memory;                   /* bytes */
	long long util;                          /* % */
	long long graphics;                      /* 1: has a graphics context, too */
};

struct event {
	char gpu[TEXT_LEN];
	long long seq, type, data, gi, ci;
};

/* Makes calls fail. Empty gpu or func: any. */
struct fault {
	char gpu[TEXT_LEN], func[TEXT_LEN];
	long long ret;                           /* 0: the call proceeds */
	long long hang_ms, crash;
	char answer[TEXT_LEN];                   /* output value, if answers is 1 */
	long long answers;
};

struct state {
	struct driver driver;
	struct gpu gpus[MAX_GPUS];
	struct link links[MAX_GPUS * 18];
	struct profile profiles[32];
	struct mig migs[MAX_GPUS * 7];
	struct event events[64];
	struct fault faults[32];
	struct process processes[64];
	unsigned drivers, ngpus, nlinks, nprofiles, nmigs, nevents, nfaults, nprocesses;
};

/* Locks the current state until state_unlock; NULL (not locked) if the slot
 * cannot be read. */
const struct state *state_lock(void);
void state_unlock(void);

/* An open file descriptor of the library file. */
int state_fd(void);

/* Parses text, which it modifies; prints malformed input to stderr and returns
 * false. */
bool state_parse(char *text, struct state *into);

const struct gpu *state_gpu(const struct state *s, const char *uuid);
const struct mig *state_mig(const struct state *s, const char *uuid);
const struct profile *state_profile(const struct state *s, const struct gpu *g, long long index);
