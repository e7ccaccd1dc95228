package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/doctor"
	"github.com/gpucdi/gpucdi/internal/host"
)

func TestVerdict(t *testing.T) {
	pass := doctor.Finding{Check: "hardware", Verdict: doctor.Pass}
	warn := doctor.Finding{Check: "hardware", Verdict: doctor.Warn}
	skip := doctor.Finding{Check: "kubelet", Verdict: doctor.Skip}
	module := doctor.Finding{Check: "kernel module", Verdict: doctor.Fail}
	gpus := doctor.Finding{Check: "GPUs", Verdict: doctor.Fail}
	agent := doctor.Finding{Check: "agent", Verdict: doctor.Fail}
	for _, tc := range []struct {
		findings []doctor.Finding
		want     string
	}{
		{[]doctor.Finding{pass, warn, skip}, ""},
		{[]doctor.Finding{pass, gpus, gpus}, "1 check failed"},
		{[]doctor.Finding{module, gpus, gpus, agent}, "3 checks failed; fix the first one first"},
	} {
		got := ""
		if err := verdict(tc.findings); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.findings, got, tc.want)
		}
	}
}

func TestDoctorJSON(t *testing.T) {
	node := doctor.Node{Root: host.NewRoot(t.TempDir()), KubeletDir: t.TempDir(), CDIDir: t.TempDir(), Address: "127.0.0.1:1", Worker: "false"}
	var out strings.Builder
	if err := examine(t.Context(), node, &out, outputFormat{name: formatJSON}); err == nil || !strings.Contains(err.Error(), "checks failed") {
		t.Errorf("error %v", err)
	}
	var got struct{ Findings []doctor.Finding }
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Findings) == 0 || got.Findings[0].Check != "config" || got.Findings[0].Verdict != doctor.Pass || got.Findings[0].Message == "" {
		t.Errorf("findings %+v in\n%s", got.Findings, out.String())
	}
}
