package config_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gpucdi/gpucdi/internal/config"
)

func TestParse(t *testing.T) {
	got, err := config.Parse([]byte("cdi: {features: [video, display], passBy: [annotation]}\nhealth: {probeInterval: 1m30s}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default()
	want.CDI.Features = config.Features{config.Video, config.Display}
	want.CDI.PassBy = []config.PassBy{config.ByAnnotation}
	want.Health.ProbeInterval = config.Duration(90 * time.Second)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestEveryKeyIsOptional(t *testing.T) {
	got, err := config.Parse(nil)
	if err != nil || !reflect.DeepEqual(got, config.Default()) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestParseNamesEveryProblemAtOnce(t *testing.T) {
	_, err := config.Parse([]byte(`
apiVersion: v2
kind: Node
cdi: {features: [compute, gaming, raytracing], passBy: [hook]}
health: {probeInterval: 1ms, quietPeriod: -1s, callTimeout: 2ms, xids: {ignore: [79], fatal: [48, 79]}}
`))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{`"v2"`, `"Node"`, `"gaming"`, `"raytracing"`, `"hook"`, "1ms", "-1s", "2ms", "79"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not name %s: %v", part, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"an unknown key":      "cdi: {pasBy: [field]}",
		"a key given twice":   "kind: NodeConfig\nkind: NodeConfig",
		"no way to pass":      "cdi: {passBy: []}",
		"no feature":          "cdi: {features: []}",
		"a bare number":       "health: {probeInterval: 5}",
		"text for a duration": "health: {probeInterval: often}",
	} {
		if cfg, err := config.Parse([]byte(text)); err == nil {
			t.Errorf("%s: accepted as %+v", name, cfg)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("cdi: {passBy: [field]}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := config.Parse(data)
		if err == nil && (len(cfg.CDI.Features) == 0 || len(cfg.CDI.PassBy) == 0 || cfg.Health.ProbeInterval <= 0) {
			t.Errorf("accepted %+v", cfg)
		}
	})
}
