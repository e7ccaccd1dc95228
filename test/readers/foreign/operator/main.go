// Command operator decodes a PodMonitor, ServiceMonitor or PrometheusRule into the Prometheus operator's types, and
// rejects unknown fields.
package main

import (
	"fmt"
	"io"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(in io.Reader) error {
	text, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	var head struct{ APIVersion, Kind string }
	if err := yaml.Unmarshal(text, &head); err != nil {
		return err
	}
	if want := monitoring.SchemeGroupVersion.String(); head.APIVersion != want {
		return fmt.Errorf("apiVersion is %q, want %q", head.APIVersion, want)
	}
	switch head.Kind {
	case monitoring.PodMonitorsKind:
		return yaml.UnmarshalStrict(text, &monitoring.PodMonitor{})
	case monitoring.ServiceMonitorsKind:
		return yaml.UnmarshalStrict(text, &monitoring.ServiceMonitor{})
	case monitoring.PrometheusRuleKind:
		return yaml.UnmarshalStrict(text, &monitoring.PrometheusRule{})
	}
	return fmt.Errorf("kind is %q", head.Kind)
}
