package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpucdi/gpucdi/status"
)

// writeIsolation writes a line with the shared devices for each combination of isolation levels.
func writeIsolation(w io.Writer, devices []status.Device) {
	shared := map[string][]string{}
	for _, d := range devices {
		if levels := fmt.Sprintf("memory %s, compute %s", d.MemoryIsolation, d.ComputeIsolation); d.ComputeIsolation != "" && d.ComputeIsolation != "hardware" {
			shared[levels] = append(shared[levels], d.Index)
		}
	}
	for _, levels := range slices.Sorted(maps.Keys(shared)) {
		line(w, "Isolation of shared GPU %s: %s", strings.Join(shared[levels], ", "), levels)
	}
}

// writeShares writes a table of the shares of prepared claims, with what remains free on the devices that claims can
// share, and of pods with limited replicas.
func writeShares(w io.Writer, devices []status.Device, t tableWriter) error {
	shared := slices.DeleteFunc(slices.Clone(devices), func(d status.Device) bool {
		return d.Sharing == nil || len(d.Sharing.Shares) == 0 && d.Sharing.Capacity == (status.Amount{})
	})
	if len(shared) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t.Row("GPU", "CORES", "CEILING", "MEMORY", "USED", "LIMITED", "ALLOCATED TO")
	for _, d := range shared {
		for _, s := range d.Sharing.Shares {
			limited := "no"
			if s.MemoryLimited {
				limited = "yes"
			}
			cores, memory := amountColumns(s.Amount)
			t.Row(d.Index, cores, ceiling(s), memory, memoryUsed(s), limited, allocatedTo(s))
		}
		if d.Sharing.Capacity != (status.Amount{}) { // shared by claims
			cores, memory := amountColumns(d.Sharing.Free)
			t.Row(d.Index, cores, "-", memory, "-", "-", "(free)")
		}
	}
	return t.Flush()
}

// allocatedTo returns the column ALLOCATED TO.
func allocatedTo(s status.Share) string {
	if s.Claim == "" {
		return fmt.Sprintf("pod %s/%s", s.Namespace, s.Pods[0])
	}
	return fmt.Sprintf("claim %s/%s", s.Namespace, s.Claim)
}

// ceiling returns the column CEILING.
func ceiling(s status.Share) string {
	if s.ComputeCeiling == 0 {
		return "-"
	}
	return strconv.Itoa(s.ComputeCeiling)
}

// memoryUsed returns the column USED.
func memoryUsed(s status.Share) string {
	if s.MemoryUsed == nil {
		return "-"
	}
	return fmt.Sprintf("%d MiB", *s.MemoryUsed>>20)
}

// amountColumns returns the columns CORES and MEMORY. For a device that is shared by replicas, CORES has the number of
// replicas.
func amountColumns(a status.Amount) (cores, memory string) {
	memory = fmt.Sprintf("%d MiB", a.MemoryBytes>>20)
	switch {
	case a.Replicas == 0:
		return strconv.FormatUint(a.Cores, 10), memory
	case a.MemoryBytes == 0:
		memory = "-"
	}
	return fmt.Sprintf("×%d", a.Replicas), memory
}
