/*
 * Parses a state: one record per line, its kind first, then key=value fields,
 * separated by tabs. Missing keys are 0 or empty; unknown keys are errors, so that
 * writer and reader cannot diverge.
 */
#include "state.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct field {
	const char *key;
	size_t at, size;
};

#define TEXT(s, f) {#f, offsetof(struct s, f), TEXT_LEN}
#define NUM(s, f) {#f, offsetof(struct s, f), sizeof(long long)}

static const struct field driver_fields[] = {
	TEXT(driver, library), TEXT(driver, module), NUM(driver, cuda),
	NUM(driver, confidential), NUM(driver, protected_pcie), {0}};

static const struct field gpu_fields[] = {
	TEXT(gpu, uuid), TEXT(gpu, bus), TEXT(gpu, name), TEXT(gpu, serial),
	NUM(gpu, minor), NUM(gpu, lost), NUM(gpu, brand), NUM(gpu, arch), NUM(gpu, major),
	NUM(gpu, cc_minor), NUM(gpu, cores), NUM(gpu, device), NUM(gpu, subsystem),
	NUM(gpu, memory), NUM(gpu, used), NUM(gpu, mig), NUM(gpu, mig_pending), NUM(gpu, numa),
	NUM(gpu, node), NUM(gpu, bridge), NUM(gpu, root), NUM(gpu, sw),
	NUM(gpu, pcie_gen), NUM(gpu, pcie_width),
	NUM(gpu, util), NUM(gpu, util_memory), NUM(gpu, temperature), NUM(gpu, power),
	NUM(gpu, power_limit), NUM(gpu, clock), NUM(gpu, clock_memory),
	NUM(gpu, clocks_events), NUM(gpu, sw_power_ns), NUM(gpu, sw_thermal_ns),
	NUM(gpu, hw_thermal_ns), NUM(gpu, hw_brake_ns),
	NUM(gpu, encoder), NUM(gpu, decoder), NUM(gpu, fan), NUM(gpu, memory_temperature),
	NUM(gpu, energy), NUM(gpu, pcie_tx), NUM(gpu, pcie_rx), NUM(gpu, pcie_bits),
	NUM(gpu, pcie_replays), NUM(gpu, pcie_correctable), NUM(gpu, pcie_nonfatal),
	NUM(gpu, pcie_fatal), NUM(gpu, nvlink_tx), NUM(gpu, nvlink_rx), NUM(gpu, nvlink_flit),
	NUM(gpu, nvlink_data), NUM(gpu, nvlink_replays), NUM(gpu, nvlink_recoveries),
	NUM(gpu, sm_active), NUM(gpu, occupancy), NUM(gpu, tensor_active), NUM(gpu, dram_active),
	NUM(gpu, pcie_tx_rate), NUM(gpu, pcie_rx_rate), NUM(gpu, nvlink_tx_rate),
	NUM(gpu, nvlink_rx_rate),
	NUM(gpu, ecc), NUM(gpu, ecc_corrected), NUM(gpu, ecc_uncorrected),
	NUM(gpu, retired_sbe), NUM(gpu, retired_dbe), NUM(gpu, retired_pending),
	NUM(gpu, remapped_cor), NUM(gpu, remapped_unc), NUM(gpu, remapped_pending),
	NUM(gpu, remapped_failure), NUM(gpu, recovery), NUM(gpu, persistence),
	NUM(gpu, addressing), TEXT(gpu, cluster), NUM(gpu, clique), {0}};

static const struct field link_fields[] = {
	TEXT(link, gpu), TEXT(link, remote), NUM(link, index), NUM(link, version),
	NUM(link, active), NUM(link, type), {0}};

static const struct field profile_fields[] = {
	TEXT(profile, product), TEXT(profile, name), NUM(profile, index), NUM(profile, id),
	NUM(profile, slices), NUM(profile, instances), NUM(profile, size), NUM(profile, sms),
	NUM(profile, copy), NUM(profile, decoders), NUM(profile, encoders), NUM(profile, jpegs),
	NUM(profile, ofas), NUM(profile, memory), {0}};

static const struct field mig_fields[] = {
	TEXT(mig, uuid), TEXT(mig, gpu), NUM(mig, gi), NUM(mig, ci), NUM(mig, profile),
	NUM(mig, start), NUM(mig, ci_slices), NUM(mig, ci_start), NUM(mig, used), {0}};

static const struct field process_fields[] = {
	TEXT(process, device), NUM(process, pid), NUM(process, memory), NUM(process, util),
	NUM(process, graphics), {0}};

static const struct field event_fields[] = {
	TEXT(event, gpu), NUM(event, seq), NUM(event, type), NUM(event, data), NUM(event, gi),
	NUM(event, ci), {0}};

static const struct field fault_fields[] = {
	TEXT(fault, gpu), TEXT(fault, func), NUM(fault, ret), NUM(fault, hang_ms),
	NUM(fault, crash), TEXT(fault, answer), NUM(fault, answers), {0}};

#define RECORD(kind, array, count) \
	{#kind, kind##_fields, offsetof(struct state, array), sizeof(struct kind), \
	 sizeof(((struct state *)0)->array) / sizeof(struct kind), offsetof(struct state, count)}

static const struct record {
	const char *kind;
	const struct field *fields;
	size_t at, size, room, count;
} records[] = {
	RECORD(driver, driver, drivers), RECORD(gpu, gpus, ngpus), RECORD(link, links, nlinks),
	RECORD(profile, profiles, nprofiles), RECORD(mig, migs, nmigs),
	RECORD(event, events, nevents), RECORD(fault, faults, nfaults),
	RECORD(process, processes, nprocesses),
};

static bool set(const struct field *f, char *into, const char *value)
{
	if (f->size == sizeof(long long)) {
		char *end;
		*(long long *)(into + f->at) = strtoll(value, &end, 0);
		return *value && !*end;
	}
	if (strlen(value) >= f->size)
		return false;
	strcpy(into + f->at, value);
	return true;
}

static bool parse_fields(const struct record *r, char *into, char *rest)
{
	char *item;
	while ((item = strsep(&rest, "\t"))) {
		char *key = strsep(&item, "=");
		const struct field *f = r->fields;
		while (f->key && strcmp(f->key, key))
			f++;
		if (!item || !f->key || !set(f, into, item)) {
			fprintf(stderr, "simulated driver: unknown or invalid field %s of %s\n", key, r->kind);
			return false;
		}
	}
	return true;
}

bool state_parse(char *text, struct state *into)
{
	char *line;
	while ((line = strsep(&text, "\n"))) {
		if (!*line)
			continue;
		char *kind = strsep(&line, "\t");
		const struct record *r = records, *end = records + sizeof records / sizeof *records;
		while (r < end && strcmp(r->kind, kind))
			r++;
		unsigned *count = r < end ? (unsigned *)((char *)into + r->count) : NULL;
		if (!count || *count == r->room) {
			fprintf(stderr, "simulated driver: unknown kind %s, or too many records of it\n", kind);
			return false;
		}
		if (line && !parse_fields(r, (char *)into + r->at + *count * r->size, line))
			return false;
		++*count;
	}
	return true;
}
