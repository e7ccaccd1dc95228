package config_test

import (
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/config"
)

func TestRemediation(t *testing.T) {
	for text, want := range map[string]string{
		"{}": "",
		"{nodeCondition: true, taint: NoSchedule, after: 0s, faults: [fatal, xid_48, driver]}": "",
		"{faults: []}":                        "",
		"{nodeCondition: true, faults: null}": "remediation.faults: want at least one fault",
		"{taint: NoExecute, faults: []}":      "remediation.faults: want at least one fault",
		"{taint: NoEntry}":                    `remediation.taint: want none, PreferNoSchedule, NoSchedule or NoExecute, got "NoEntry"`,
		"{after: -1s}":                        "remediation.after: want at least 0s, got -1s",
		"{after: often}":                      "remediation.after: want a duration",
		"{faults: [ecc, config]}":             "remediation.faults[1]: want a class of XIDs",
		"{faults: [cordoned]}":                `got "cordoned"`,
		"{faults: [xid_*]}":                   `got "xid_*"`,
	} {
		_, err := config.Parse([]byte("remediation: " + text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q", text, err, want)
		}
	}
}
