package dra

import (
	"reflect"
	"testing"
)

// Any file results in a record that can be written and read again, or in an error.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"namespace":"default","name":"a","devices":[{"request":"gpu","name":"gpu-0","id":"GPU-0","more":1}],"pods":[{"name":"p","uid":"u"}],"prepared":"2026-01-02T03:04:05Z","later":{}}`))
	f.Add([]byte(`{"namespace":"default","name":"a","devices":[{"request":"gpu","name":"gpu-0","id":"GPU-0","timeSlice":"Long"}]}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, data []byte) {
		first := storedRecord{Record: Record{UID: "uid"}}
		if first.decode(data) != nil {
			return
		}
		_ = first.grant()
		s := &store{dir: t.TempDir(), records: map[string]storedRecord{"uid": first}}
		next := first.withPods([]Pod{{Name: "added", UID: "added"}})
		if err := s.save(next); err != nil {
			t.Fatal(err)
		}
		again := s.read("uid")
		if again.Damaged != "" {
			t.Fatalf("damaged: %s", again.Damaged)
		}
		if !reflect.DeepEqual(again.Devices, first.Devices) || len(again.Pods) != len(next.Pods) || !again.Prepared.Equal(first.Prepared) {
			t.Errorf("read %+v, wrote %+v", again.Record, next)
		}
		for name := range first.fields {
			if _, found := again.fields[name]; !found {
				t.Errorf("lost field %q", name)
			}
		}
	})
}

// Any parameters are either supported or refused with a short error.
func FuzzParameters(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS"}}`))
	f.Add([]byte(`{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := parseParameters("path", text); err != nil && len(err.Error()) > 1000 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	})
}
