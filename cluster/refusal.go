package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
)

// reasonLimit bounds the reason for the refusal of a device, in bytes.
const reasonLimit = 300

// writeError is the error of a failed write of a slice.
type writeError struct {
	verb   string // "updating"
	change sliceChange
	err    error
}

func (e *writeError) Error() string {
	return fmt.Sprintf("%s ResourceSlice %s: %v%s", e.verb, e.change.name, e.err, remedy(e.err))
}

func (e *writeError) Unwrap() error { return e.err }

// isStale reports whether a write failed because the slice was created, changed or deleted in the meantime.
func isStale(err error) bool {
	var write *writeError
	return errors.As(err, &write) && (statusCode(err) == http.StatusConflict || errors.Is(err, ErrNotFound))
}

// invalidDevice matches the path of an invalid device in a slice.
var invalidDevice = regexp.MustCompile(`^spec\.devices\[([0-9]{1,4})\]`)

// refuse records the devices that the API server does not accept. They are omitted, so that one invalid device does not
// prevent others from being published or withdrawn. found reports whether err names a device not recorded before.
func (p *Pool) refuse(err error) (found bool) {
	var write *writeError
	var response *responseError
	if !errors.As(err, &write) || !errors.As(err, &response) || response.code != http.StatusUnprocessableEntity {
		return false
	}
	devices := write.change.spec.Devices
	for _, cause := range response.causes {
		match := invalidDevice.FindStringSubmatch(cause.Field)
		if match == nil {
			continue
		}
		i, err := strconv.Atoi(match[1])
		if err != nil || i >= len(devices) {
			continue
		}
		device := devices[i].Device
		encoded, err := json.Marshal(device)
		if err != nil {
			continue
		}
		if p.state.refused[device.Name].device == string(encoded) {
			continue
		}
		reason := truncate(cause.Field+": "+cause.Message, reasonLimit)
		p.state.refused[device.Name] = refusal{string(encoded), reason}
		p.log.Warn("device refused by API server, publishing without it", "device", device.Name, "reason", reason)
		found = true
	}
	return found
}
