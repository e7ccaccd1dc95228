package driver

import (
	"slices"
	"testing"
	"time"
)

func TestHung(t *testing.T) {
	const s = time.Second
	const callTimeout = 10 * s
	wait := Step{Index: NoGPU, Start: 100 * s} // waits for events until Start
	for _, tc := range []struct {
		name    string
		steps   []Step
		blocked []int
		now     time.Duration
		want    []int
		next    time.Duration
	}{
		{"no step", nil, nil, 50 * s, nil, 10 * s},
		{"waiting for events", []Step{wait, {Index: 0, Start: 1 * s, Done: true}}, nil, 99 * s, nil, 10 * s},
		{"waiting for events, late", []Step{wait, {Index: 0, Start: 1 * s, Done: true}}, nil, 109 * s, nil, 1 * s},
		{"waiting for events hangs", []Step{wait, {Index: 0, Start: 1 * s, Done: true}}, nil, 110 * s, []int{NoGPU}, 0},
		{"just before the timeout", []Step{{Index: 3, Start: 50 * s}}, nil, 60*s - 1, nil, 1},
		{"at the timeout", []Step{{Index: 3, Start: 50 * s}}, nil, 60 * s, []int{3}, 0},
		{"old step that is done", []Step{{Index: 3, Start: 1 * s, Done: true}}, nil, 60 * s, nil, 10 * s},
		{"later steps may be blocked by the first", []Step{{Index: 1, Start: 50 * s}, {Index: 2, Start: 51 * s}, {Index: 0, Start: 49 * s}}, nil, 61 * s, []int{0}, 0},
		{"steps that were blocked in the previous worker", []Step{{Index: 1, Start: 50 * s}, {Index: 2, Start: 51 * s}, {Index: 3, Start: 52 * s}}, []int{1, 2}, 60 * s, []int{1, 2}, 0},
		{"later step done, so no step blocks others", []Step{{Index: 0, Start: 50 * s}, {Index: 1, Start: 51 * s}, {Index: 2, Start: 52 * s, Done: true}}, nil, 61 * s, []int{0, 1}, 0},
		{"later step done, separate deadlines", []Step{{Index: 0, Start: 50 * s}, {Index: 1, Start: 51 * s}, {Index: 2, Start: 52 * s, Done: true}}, nil, 60 * s, []int{0}, 0},
		{"done wait for events is no evidence", []Step{{Index: NoGPU, Start: 55 * s, Done: true}, {Index: 0, Start: 50 * s}, {Index: 1, Start: 51 * s}}, nil, 61 * s, []int{0}, 0},
		{"trial before its timeout", []Step{{Index: 0, Start: 50 * s, Kind: Trial}}, nil, 61 * s, nil, 10 * s},
		{"trial at its timeout", []Step{{Index: 0, Start: 50 * s, Kind: Trial}}, nil, 50*s + trialTimeout, []int{0}, 0},
		{"trial may block others", []Step{{Index: 0, Start: 50 * s, Kind: Trial}, {Index: 1, Start: 51 * s}}, nil, 61 * s, []int{0}, 0},
		{"trial that blocks no other", []Step{{Index: 0, Start: 50 * s, Kind: Trial}, {Index: 1, Start: 52 * s}, {Index: 2, Start: 51 * s, Done: true}}, nil, 62 * s, []int{1}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := hung(tc.steps, tc.now, callTimeout, tc.blocked)
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %v, want %v", got, tc.want)
			}
			if next := nextCheck(tc.steps, tc.now, callTimeout); len(got) == 0 && next != tc.next {
				t.Errorf("next check in %s, want %s", next, tc.next)
			}
		})
	}
}

func TestCrashed(t *testing.T) {
	const s = time.Second
	wait := Step{Index: NoGPU, Start: 100 * s}
	for _, tc := range []struct {
		name  string
		steps []Step
		want  []int
	}{
		{"setting", []Step{{Index: 1, Start: 2 * s}, {Index: 0, Start: 3 * s, Kind: Setting}, {Index: 0, Start: 1 * s}}, []int{0}},
		{"setting and trial", []Step{{Index: 1, Start: 2 * s, Kind: Trial}, {Index: 0, Start: 3 * s, Kind: Setting}}, []int{1}},
		{"before the first step", nil, []int{NoGPU}},
		{"waiting for events", []Step{wait, {Index: 1, Start: 1 * s, Done: true}}, []int{NoGPU}},
		{"step about no GPU", []Step{{Index: NoGPU, Start: 1 * s}}, []int{NoGPU}},
		{"step about one GPU", []Step{wait, {Index: 1, Start: 1 * s}}, []int{1}},
		{"steps about two GPUs", []Step{{Index: 1, Start: 1 * s}, {Index: 0, Start: 2 * s}}, []int{1, 0}},
		{"trial", []Step{{Index: 1, Start: 3 * s}, {Index: 0, Start: 2 * s, Kind: Trial}, {Index: NoGPU, Start: 3 * s}}, []int{0}},
	} {
		if got := crashed(tc.steps, 50*s); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}
