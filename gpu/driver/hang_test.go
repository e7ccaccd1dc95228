package driver

import (
	"slices"
	"testing"
	"time"
)

func TestHung(t *testing.T) {
	const s = time.Second
	const callTimeout = 10 * s
	wait := Step{Index: Nobody, Begin: 100 * s} // for events, until then
	for _, tc := range []struct {
		name  string
		steps []Step
		held  []int
		now   time.Duration
		want  []int
		next  time.Duration
	}{
		{"nothing has begun", nil, nil, 50 * s, nil, 10 * s},
		{"a wait for events", []Step{wait, {Index: 0, Begin: 1 * s, Back: true}}, nil, 99 * s, nil, 10 * s},
		{"a wait for events that is not over in time", []Step{wait, {Index: 0, Begin: 1 * s, Back: true}}, nil, 109 * s, nil, 1 * s},
		{"a wait for events that hangs", []Step{wait, {Index: 0, Begin: 1 * s, Back: true}}, nil, 110 * s, []int{Nobody}, 0},
		{"right before the timeout", []Step{{Index: 3, Begin: 50 * s}}, nil, 60*s - 1, nil, 1},
		{"at the timeout", []Step{{Index: 3, Begin: 50 * s}}, nil, 60 * s, []int{3}, 0},
		{"one that is back is no matter how old", []Step{{Index: 3, Begin: 1 * s, Back: true}}, nil, 60 * s, nil, 10 * s},
		{"later ones may wait for the first", []Step{{Index: 1, Begin: 50 * s}, {Index: 2, Begin: 51 * s}, {Index: 0, Begin: 49 * s}}, nil, 61 * s, []int{0}, 0},
		{"they were held up before, too", []Step{{Index: 1, Begin: 50 * s}, {Index: 2, Begin: 51 * s}, {Index: 3, Begin: 52 * s}}, []int{1, 2}, 60 * s, []int{1, 2}, 0},
		{"nobody waits for one if a later one is back", []Step{{Index: 0, Begin: 50 * s}, {Index: 1, Begin: 51 * s}, {Index: 2, Begin: 52 * s, Back: true}}, nil, 61 * s, []int{0, 1}, 0},
		{"each has its own deadline then", []Step{{Index: 0, Begin: 50 * s}, {Index: 1, Begin: 51 * s}, {Index: 2, Begin: 52 * s, Back: true}}, nil, 60 * s, []int{0}, 0},
		{"a wait that is over shows nothing about GPUs", []Step{{Index: Nobody, Begin: 55 * s, Back: true}, {Index: 0, Begin: 50 * s}, {Index: 1, Begin: 51 * s}}, nil, 61 * s, []int{0}, 0},
		{"a trial has more time", []Step{{Index: 0, Begin: 50 * s, Trial: true}}, nil, 61 * s, nil, 10 * s},
		{"but not for ever", []Step{{Index: 0, Begin: 50 * s, Trial: true}}, nil, 50*s + trialTimeout, []int{0}, 0},
		{"a trial may hold up others", []Step{{Index: 0, Begin: 50 * s, Trial: true}, {Index: 1, Begin: 51 * s}}, nil, 61 * s, []int{0}, 0},
		{"a trial that holds up none", []Step{{Index: 0, Begin: 50 * s, Trial: true}, {Index: 1, Begin: 52 * s}, {Index: 2, Begin: 51 * s, Back: true}}, nil, 62 * s, []int{1}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := hung(tc.steps, tc.now, callTimeout, tc.held)
			if !slices.Equal(got, tc.want) {
				t.Errorf("to blame are %v, want %v", got, tc.want)
			}
			if next := nextCheck(tc.steps, tc.now, callTimeout); len(got) == 0 && next != tc.next {
				t.Errorf("the next check is in %s, want %s", next, tc.next)
			}
		})
	}
}

func TestCrashed(t *testing.T) {
	const s = time.Second
	wait := Step{Index: Nobody, Begin: 100 * s}
	for _, tc := range []struct {
		name  string
		steps []Step
		want  []int
	}{
		{"before the first step", nil, []int{Nobody}},
		{"a wait for events", []Step{wait, {Index: 1, Begin: 1 * s, Back: true}}, []int{Nobody}},
		{"a call about nobody", []Step{{Index: Nobody, Begin: 1 * s}}, []int{Nobody}},
		{"a call about a GPU", []Step{wait, {Index: 1, Begin: 1 * s}}, []int{1}},
		{"calls about two GPUs", []Step{{Index: 1, Begin: 1 * s}, {Index: 0, Begin: 2 * s}}, []int{1, 0}},
		{"a trial", []Step{{Index: 1, Begin: 3 * s}, {Index: 0, Begin: 2 * s, Trial: true}, {Index: Nobody, Begin: 3 * s}}, []int{0}},
	} {
		if got := crashed(tc.steps, 50*s); !slices.Equal(got, tc.want) {
			t.Errorf("%s: to blame are %v, want %v", tc.name, got, tc.want)
		}
	}
}
