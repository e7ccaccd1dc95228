package driver

import "testing"

func TestLastWords(t *testing.T) {
	for written, want := range map[string]string{
		"":                          "",
		"the agent is gone <nil>\n": ": the agent is gone <nil>",
		"panic: index out of range\n\ngoroutine 1 [running]:\nmain.main()\n":                    ": panic: index out of range",
		"SIGABRT: abort\nPC=0x7fa5 m=4\n\nnvml._Cfunc_nvmlInit_v2(...)\n\t_cgo_gotypes.go:5321": ": SIGABRT: abort in nvmlInit_v2",
	} {
		if got := lastWords(written); got != want {
			t.Errorf("of %q it is told %q, want %q", written, got, want)
		}
	}
}
