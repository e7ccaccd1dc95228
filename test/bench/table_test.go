package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// value returns a figure with a number only.
func value(v float64) figure { return figure{value: v} }

func TestRatio(t *testing.T) {
	for _, tc := range []struct {
		ours, other float64
		want        string
	}{
		{1, 2, "0.50x"},
		{3, 2, "1.50x"},
		{1, 3, "0.33x"},
		{1, 100, "0.01x"},
		{1, 101, "<0.01x"},
		{1e6, 1, "1000000.00x"},
		{1, 0, ""}, // missing
		{0, 1, ""},
		{-1, 2, ""}, // noise
		{1, -2, ""},
		{-1, -2, ""},
	} {
		if got := (row{ours: value(tc.ours), other: value(tc.other)}).ratio(); got != tc.want {
			t.Errorf("%v and %v have the ratio %q, want %q", tc.ours, tc.other, got, tc.want)
		}
	}
}

func TestTargets(t *testing.T) {
	for _, tc := range []struct {
		got, want target
	}{
		{ratio(0.7), target{text: "0.7x", ratio: 0.7}},
		{ratio(2), target{text: "2x", ratio: 2}},
		{atMost("+10 µs", 10*time.Microsecond), target{text: "+10 µs", value: 10_000}},
	} {
		if tc.got != tc.want {
			t.Errorf("got %+v, want %+v", tc.got, tc.want)
		}
	}
}

func TestMissed(t *testing.T) {
	tenMicros := atMost("10 µs", 10*time.Microsecond)
	for name, tc := range map[string]struct {
		ours, other float64
		target      target
		want        bool
	}{
		"ratio, equal":           {7, 10, ratio(0.7), false},
		"ratio, above":           {7.1, 10, ratio(0.7), true},
		"ratio, ours is noise":   {-1, 10, ratio(0.7), false},
		"ratio, no other value":  {1, 0, ratio(0.7), true},
		"ratio, other is noise":  {1, -1, ratio(0.7), true},
		"ratio, no value at all": {0, 0, ratio(0.7), true},
		"value, equal":           {10_000, 1, tenMicros, false},
		"value, above":           {10_001, 20_000, tenMicros, true},
		"value, negative":        {-5, 1, tenMicros, false},
		"value, no other value":  {9_000, 0, tenMicros, false},
		"no target":              {1e9, 1, none, false},
	} {
		if got := (row{ours: value(tc.ours), other: value(tc.other), target: tc.target}).missed(); got != tc.want {
			t.Errorf("%s: missed is %v, want %v", name, got, tc.want)
		}
	}

	var first, second table
	first.add("good", value(1), value(2), ratio(1))
	first.add("slow", value(3), value(2), ratio(1))
	second.add("large", value(5), value(2), ratio(1))
	second.add("other", value(5), value(2), none)
	if got, want := missed(&first, &second), []string{"slow", "large"}; !slices.Equal(got, want) {
		t.Errorf("%q missed their targets, want %q", got, want)
	}
}

func TestTable(t *testing.T) {
	tab := &table{other: "nvidia-device-plugin"}
	tab.add("met", figure{"1 ms", 1}, figure{"2 ms", 2}, ratio(0.7))
	tab.add("missed", figure{"12.5 ms", 12.5}, figure{"10 ms", 10}, ratio(1))
	tab.add("ours only", figure{"3 ms", 3}, figure{}, none)
	for _, tc := range []struct {
		marks marks
		want  string
	}{
		{plain, "MISSED"},
		{colored, "\x1b[31mMISSED\x1b[0m"},
	} {
		var out strings.Builder
		if err := tab.write(&out, tc.marks); err != nil {
			t.Fatal(err)
		}
		want := `
            gpucdi    nvidia-device-plugin   ratio   target   
met         1 ms      2 ms                   0.50x   0.7x     
missed      12.5 ms   10 ms                  1.25x   1x       ` + tc.want + `
ours only   3 ms                                              
`
		if out.String() != want {
			t.Errorf("got\n%q\nwant\n%q", out.String(), want)
		}
	}

	var out strings.Builder
	if err := new(table).write(&out, plain); err != nil || out.Len() > 0 {
		t.Errorf("a table without rows is %q, %v", &out, err)
	}
}

func TestSummary(t *testing.T) {
	first, second := &table{other: "a"}, &table{other: "b"}
	first.add("not in it", figure{"1 ms", 1}, figure{"2 ms", 2}, none)
	first.add("Allocate, 1 GPU", figure{"+5 µs, 90 µs in total", 5}, figure{"+50 µs, 150 µs in total", 50}, none).summarize("Allocate")
	second.add("pods", figure{"1 s", 1}, figure{}, none).summarize("10 pods")
	var out strings.Builder
	if err := writeSummary(&out, first, second); err != nil {
		t.Fatal(err)
	}
	want := `
| | gpucdi | NVIDIA | ratio |
|---|---|---|---|
| Allocate | +5 µs | +50 µs | 0.10x |
| 10 pods | 1 s |  |  |
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}

	out.Reset()
	second.rows[0].summarize("")
	if err := writeSummary(&out, second); err != nil || out.Len() > 0 {
		t.Errorf("the summary of a table without summarized rows is %q, %v", &out, err)
	}
}

func TestMedian(t *testing.T) {
	for _, tc := range []struct{ times, want []time.Duration }{
		{[]time.Duration{4}, []time.Duration{4}},
		{[]time.Duration{9, 1, 5}, []time.Duration{5}},
		{[]time.Duration{1000, -3, 2, 1, 0}, []time.Duration{1}}, // robust against outliers
		{[]time.Duration{2, 1}, []time.Duration{2}},              // the upper one, not the mean of both
	} {
		times := slices.Clone(tc.times)
		if got := median(times); got != tc.want[0] {
			t.Errorf("the median of %v is %v, want %v", tc.times, got, tc.want[0])
		}
		if !slices.Equal(times, tc.times) {
			t.Errorf("median reorders %v to %v", tc.times, times)
		}
	}
}

func TestFigures(t *testing.T) {
	const us = time.Microsecond
	for _, tc := range []struct{ got, want figure }{
		{typical([]time.Duration{9 * us, 1234 * us, 50_000 * us}), figure{"1.2 ms", 1_234_000}},
		{difference([]time.Duration{3 * us, -90 * us, 5 * us}, micros), figure{"+3 µs", 3_000}},
		{difference([]time.Duration{-3 * us, -90 * us, 5 * us}, micros), figure{"-3 µs", -3_000}},
		{difference([]time.Duration{0}, micros), figure{"+0 µs", 0}},
		{difference([]time.Duration{2500 * us}, millis), figure{"+2.5 ms", 2_500_000}},
		{figure{"1 ms", 1}.with(", %d of %d", 2, 3), figure{"1 ms, 2 of 3", 1}},
	} {
		if tc.got != tc.want {
			t.Errorf("got %+v, want %+v", tc.got, tc.want)
		}
	}
}
