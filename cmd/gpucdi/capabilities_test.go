package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// dropEnv makes the test binary drop its capabilities and print which ones it can raise.
const dropEnv = "GPUCDI_TEST_DROP_CAPABILITIES"

func TestMain(m *testing.M) {
	if os.Getenv(dropEnv) == "" {
		os.Exit(m.Run())
	}
	if err := dropCapabilities(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	noNewPrivs, err := cap.Prctl(unix.PR_GET_NO_NEW_PRIVS)
	fmt.Println("no_new_privs", noNewPrivs, err)
	fmt.Println("effective", effective())
	for _, c := range []cap.Value{cap.SYS_ADMIN, cap.SYS_PTRACE, cap.MKNOD, cap.DAC_OVERRIDE} {
		raised := cap.GetProc()
		_ = raised.SetFlag(cap.Effective, true, c)
		fmt.Println("raise", c, raised.SetProc() == nil)
	}
	os.Exit(0)
}

// effective reports whether any capability is effective.
func effective() bool {
	for c := range cap.MaxBits() {
		if on, err := cap.GetProc().GetFlag(cap.Effective, c); err != nil || on {
			return true
		}
	}
	return false
}

// As docs/security.md states, no capability is effective, keptCapability can be raised again, and the others are dropped
// permanently.
func TestDropCapabilities(t *testing.T) {
	permitted, err := cap.GetProc().GetFlag(cap.Permitted, keptCapability)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), dropEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := fmt.Sprintf("no_new_privs 1 <nil>\neffective false\nraise cap_sys_admin %t\nraise cap_sys_ptrace false\n"+
		"raise cap_mknod false\nraise cap_dac_override false", permitted)
	if got := strings.TrimSpace(string(out)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
