package cdi_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/gpucdi/gpucdi/cdi"
	"github.com/gpucdi/gpucdi/gpu"
	"github.com/gpucdi/gpucdi/internal/config"
)

func TestFilesThatWereLookedAtAhead(t *testing.T) {
	n := newNode(t)
	n.write(t, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "+driverVersion+"  Tue\n")
	driver := n.driver(t)
	want, err := cdi.Inspect(n.root(), driver, inventory, config.DefaultFeatures())
	if err != nil {
		t.Fatal(err)
	}
	ahead := cdi.LookAhead(n.root(), driver, config.DefaultFeatures())
	n.remove(t, libDir+"libcuda.so."+driverVersion)
	got, err := ahead.Inspect(n.root(), driver, inventory, config.DefaultFeatures())
	if err != nil {
		t.Fatalf("they were looked at again: %v", err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestFilesOfAnotherDriverAreLookedAtAgain(t *testing.T) {
	for name, told := range map[string]gpu.Driver{
		"another version":        {Version: "570.1.2"},
		"confidential computing": {Version: driverVersion, Confidential: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.library(t, "libcuda.so.570.1.2", "libcuda.so.1")
			n.library(t, "libnvidia-pkcs11.so."+driverVersion, "libnvidia-pkcs11.so."+driverVersion)
			n.write(t, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  "+driverVersion+"  Tue\n")
			driver := n.driver(t)
			ahead := cdi.LookAhead(n.root(), driver, config.DefaultFeatures())
			inv := *inventory
			inv.Driver = told

			want, wantErr := cdi.Inspect(n.root(), driver, &inv, config.DefaultFeatures())
			got, err := ahead.Inspect(n.root(), driver, &inv, config.DefaultFeatures())
			if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(err, wantErr) {
				t.Errorf("%+v, %v, want %+v, %v", got, err, want, wantErr)
			}
			if before, _ := ahead.Inspect(n.root(), driver, inventory, config.DefaultFeatures()); reflect.DeepEqual(got, before) {
				t.Errorf("the other driver has no other files: %+v", got)
			}
		})
	}
}

// What is missing is told once, whether the kernel module told its version before or not.
func TestFilesThatAreMissingAhead(t *testing.T) {
	n := newNode(t)
	driver := n.driver(t)
	n.remove(t, libDir+"libcuda.so."+driverVersion)
	for _, version := range []string{"", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  " + driverVersion + "  Tue\n"} {
		n.write(t, "proc/driver/nvidia/version", version)
		ahead := cdi.LookAhead(n.root(), driver, config.DefaultFeatures())
		_, err := ahead.Inspect(n.root(), driver, inventory, config.DefaultFeatures())
		if err == nil || strings.Count(err.Error(), "libcuda.so.1") != 1 {
			t.Errorf("version %q: %v", version, err)
		}
	}
}
