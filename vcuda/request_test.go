package vcuda

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/allocator"
)

func TestNames(t *testing.T) {
	for name, want := range map[string]request{
		"vcuda-c30-m4000":     {Cores: 30, MemoryMiB: 4000},
		"vcuda-c30-m4000-l50": {Cores: 30, MemoryMiB: 4000, ComputeCeiling: 50},
		"vcuda-c50-m1-l50":    {Cores: 50, MemoryMiB: 1, ComputeCeiling: 50},
		"vcuda-c1-m1-l100":    {Cores: 1, MemoryMiB: 1, ComputeCeiling: 100},
		"vcuda-c100":          {Cores: 100},
		"vcuda-c3200":         {Cores: 3200},
		"vcuda-c30-m4000-l50-memory-driver-compute-timeslice": {30, 4000, 50, allocator.Isolation{Memory: "driver", Compute: "timeslice"}},
		"vcuda-c200-memory-hardware":                          {Cores: 200, Isolation: allocator.Isolation{Memory: "hardware"}},
		"vcuda-c99-m1-compute-hardware":                       {Cores: 99, MemoryMiB: 1, Isolation: allocator.Isolation{Compute: "hardware"}},
	} {
		if got, ok := parseName(name); !ok || got != want || got.Name() != name {
			t.Errorf("%s: %+v, %t, %s", name, got, ok, got.Name())
		}
	}
}

func TestInvalidNames(t *testing.T) {
	for _, name := range []string{
		"", "vcuda", "vcuda-c", "vcuda-c0-m1", "vcuda-c030-m1", "vcuda-c-1-m1", "vcuda-c30", "vcuda-c30-m0", "vcuda-c30-m04",
		"vcuda-c150", "vcuda-c150-m1", "vcuda-c100-m1", "vcuda-c100-l100", "vcuda-c3300", "vcuda-c10000", "vcuda-c30-m9999999999",
		"vcuda-c30-m4000-l20", "vcuda-c30-m4000-l101", "vcuda-c30-m4000-l0", "vcuda-c30-l50-m4000", "vcuda-c30-m4000-memory-",
		"vcuda-c30-m4000-memory-strong", "vcuda-c30-m4000-compute-driver", "Vcuda-c30-m4000", "vcuda-c30-m4000\n", "x-vcuda-c100",
	} {
		if got, ok := parseName(name); ok {
			t.Errorf("%q is accepted: %+v", name, got)
		}
	}
}

func FuzzParseName(f *testing.F) {
	f.Add("vcuda-c30-m4000-l50-memory-driver-compute-timeslice")
	f.Add("vcuda-c200")
	f.Fuzz(func(t *testing.T, name string) {
		if r, ok := parseName(name); ok && r.Name() != name {
			t.Errorf("%q has the request %+v of %q", name, r, r.Name())
		}
	})
}

// The files in testdata are the templates of the requests in their names.
func TestTemplates(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no templates: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r, ok := parseName(name)
		if !ok {
			t.Fatalf("%s is not a name", name)
		}
		got, err := json.MarshalIndent(r.template("team", "gpu.nvidia.com", "gpu.example.com"), "", "  ")
		if err != nil || string(got)+"\n" != string(want) {
			t.Errorf("%s, error %v:\n%s", name, err, got)
		}
	}
}

// Whole GPUs have the strongest isolation, although the attributes of shared GPUs describe their parts.
func TestIsolationOfWholeGPUs(t *testing.T) {
	plain := request{Cores: 100}.template("team", "gpu.nvidia.com", "gpu.nvidia.com")
	isolated := request{Cores: 100, Isolation: allocator.Isolation{Memory: "hardware", Compute: "hardware"}}.template("team", "gpu.nvidia.com", "gpu.nvidia.com")
	if isolated.Spec.Spec.hash() != plain.Spec.Spec.hash() {
		t.Errorf("the spec %+v differs from %+v", isolated.Spec.Spec, plain.Spec.Spec)
	}
}
