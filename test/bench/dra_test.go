package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseHistogram(t *testing.T) {
	const claims = `# TYPE gpucdi_dra_prepare_duration_seconds histogram
gpucdi_dra_prepare_duration_seconds_bucket{le="0.001"} 1
gpucdi_dra_prepare_duration_seconds_bucket{le="+Inf"} 3
gpucdi_dra_prepare_duration_seconds_sum 0.0125
gpucdi_dra_prepare_duration_seconds_count 3
gpucdi_dra_unprepare_duration_seconds_sum 7
gpucdi_dra_unprepare_duration_seconds_count 2
`
	const calls = kubeletPrepares + "_sum" + callLabels + " 0.25\n" + kubeletPrepares + "_count" + callLabels + " 5\n"
	for name, tc := range map[string]struct {
		metrics, name, labels string
		want                  histogram
	}{
		"claims":        {claims, agentPrepares, "", histogram{3, 12500 * time.Microsecond}},
		"small sum":     {agentPrepares + "_sum 2.5e-05\n", agentPrepares, "", histogram{0, 25 * time.Microsecond}},
		"no line break": {agentPrepares + "_count 4", agentPrepares, "", histogram{4, 0}},
		"without DRA":   {"gpucdi_build_info 1\n", agentPrepares, "", histogram{}},
		"kubelet":       {calls, kubeletPrepares, callLabels, histogram{5, 250 * time.Millisecond}},
		"failed calls":  {strings.ReplaceAll(calls, "OK", "Unknown"), kubeletPrepares, callLabels, histogram{}},
	} {
		if got, err := parseHistogram(tc.metrics, tc.name, tc.labels); err != nil || got != tc.want {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, tc.want)
		}
	}
	for _, metrics := range []string{agentPrepares + "_sum x", agentPrepares + "_count 1.5"} {
		if got, err := parseHistogram(metrics, agentPrepares, ""); err == nil {
			t.Errorf("%s: got %+v", metrics, got)
		}
	}
}

func TestBeyond(t *testing.T) {
	const us = time.Microsecond
	prepares, reads := []time.Duration{2100 * us, 90_000 * us, 2000 * us}, []time.Duration{1400 * us, 1 * us, 1500 * us}
	if got, want := beyond(prepares, reads), (figure{"+700 µs, 2100 µs in total, GET of the claim 1400 µs", 700_000}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A pod is sent once, when it is bound. A pod with the name of an earlier one is another pod.
func TestBoundPods(t *testing.T) {
	const events = `
{"type": "ADDED", "object": {"metadata": {"name": "a", "uid": "1"}, "spec": {}}}
{"type": "MODIFIED", "object": {"metadata": {"name": "a", "uid": "1"}, "spec": {"nodeName": "box"}}}
{"type": "MODIFIED", "object": {"metadata": {"name": "a", "uid": "1"}, "spec": {"nodeName": "box"}}}
{"type": "ADDED", "object": {"metadata": {"name": "b", "uid": "2"}, "spec": {"nodeName": "box"}}}
{"type": "ADDED", "object": {"metadata": {"name": "a", "uid": "3"}, "spec": {"nodeName": "box"}}}
`
	bound := make(chan string, 10)
	boundPods(strings.NewReader(events), bound)
	close(bound)
	var got []string
	for pod := range bound {
		got = append(got, pod)
	}
	if want := []string{"a", "b", "a"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Devices are counted in all slices, and the end of the watch is an error.
func TestSliceWatch(t *testing.T) {
	const events = `
{"type": "ADDED", "object": {"metadata": {"name": "a"}, "spec": {"devices": [{"name": "x"}, {"name": "y"}]}}}
{"type": "ADDED", "object": {"metadata": {"name": "b"}, "spec": {"devices": [{"name": "z"}]}}}
{"type": "MODIFIED", "object": {"metadata": {"name": "a"}, "spec": {"devices": [{"name": "x"}]}}}
{"type": "DELETED", "object": {"metadata": {"name": "b"}, "spec": {"devices": [{"name": "z"}]}}}
{"type": "DELETED", "object": {"metadata": {"name": "a"}, "spec": {"devices": [{"name": "x"}]}}}
`
	w := &sliceWatch{changes: make(chan int, 10)}
	countDevices(strings.NewReader(events), w.changes)
	close(w.changes)
	for _, want := range []int{0, 2, 3, 2, 1, 0, 0} {
		if err := w.await(t.Context(), want); err != nil || w.devices != want {
			t.Fatalf("waiting for %d devices returns %v with %d", want, err, w.devices)
		}
	}
	if err := w.await(t.Context(), 8); err == nil {
		t.Error("no error after the end of the watch")
	}
}
