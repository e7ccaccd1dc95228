package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpucdi/gpucdi/internal/host"
)

const (
	kernelLogDevice = "/dev/kmsg"
	// recordLimit bounds a record of the kernel log, in bytes; the kernel limits it to 8 KiB.
	recordLimit = 8 << 10
	// maxRecords bounds how many records are read, and maxKernelLines how many of the latest are returned.
	maxRecords     = 1 << 17
	maxKernelLines = 2000
)

// kernelLog returns the latest lines of the kernel log about the driver, without waiting for new ones.
func kernelLog(ctx context.Context, node host.Root) ([]byte, error) {
	resolved, err := node.Resolve(kernelLogDevice)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(node.LocalPath(resolved), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", kernelLogDevice, err)
	}
	defer unix.Close(fd)
	var lines []string
	record := make([]byte, recordLimit)
	for range maxRecords {
		n, err := unix.Read(fd, record) // each read returns one record
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR): // EPIPE: records were overwritten
			continue
		case errors.Is(err, unix.EAGAIN), err == nil && n == 0: // the end
			return []byte(strings.Join(lines, "")), nil
		case err != nil:
			return nil, fmt.Errorf("reading %s: %w", kernelLogDevice, err)
		}
		if line, ok := driverLine(string(record[:n])); ok {
			lines = append(lines, line)
			lines = lines[max(0, len(lines)-maxKernelLines):]
		}
	}
	return []byte(strings.Join(lines, "")), nil
}

// driverLine returns the line of a record if it concerns the driver. A record is
// "priority,sequence,microseconds,flags;text", followed by lines with properties (dev-kmsg in the kernel's ABI
// documentation).
func driverLine(record string) (line string, ok bool) {
	prefix, text, found := strings.Cut(record, ";")
	fields := strings.Split(prefix, ",")
	text, _, _ = strings.Cut(text, "\n")
	if !found || len(fields) < 3 || !strings.Contains(text, "NVRM") && !strings.Contains(text, "Xid") {
		return "", false
	}
	return fmt.Sprintf("[%s us] %s\n", fields[2], text), true
}
