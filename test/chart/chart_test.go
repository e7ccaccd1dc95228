package main

import (
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpucdi/gpucdi/test/readers"
)

func TestThePlainManifestIsTheChart(t *testing.T) {
	want, err := render(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../deploy/gpucdi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("deploy/gpucdi.yaml is not what the chart makes: run make manifests")
	}
}

func TestLint(t *testing.T) {
	if out, err := helm(t.Context(), "lint", "--strict"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestValues(t *testing.T) {
	for _, tc := range []struct {
		set       string
		has, lack []string
	}{
		{"image.repository=r/i", []string{"image: r/i:dev"}, nil},
		{"image.tag=v1", []string{"image: gpucdi/gpucdi:v1"}, nil},
		{"maxUnavailable=10%", []string{"maxUnavailable: 10%", "maxSurge: 0"}, nil},
		{"nodes.withPCILabel=true", []string{"feature.node.kubernetes.io/pci-10de.present", "nodeAffinity"}, nil},
		{"nodes.withPCILabel=false", nil, []string{"affinity"}},
		{"nodes.selector.gpu=yes", []string{"gpu: \"yes\""}, nil},
		{"driverRoot=/opt/driver", []string{"{name: GPUCDI_DRIVER_ROOT, value: /opt/driver}"}, nil},
		{"kubeletDir=/var/lib/k0s/kubelet", []string{"path: /var/lib/k0s/kubelet/pod-resources", "path: /var/lib/kubelet/device-plugins"}, nil},
		{"loadModules=true", []string{"- --load-modules"}, nil},
		{"port=9999", []string{"containerPort: 9999", "--listen=:9999", "127.0.0.1:9999"}, []string{"9435"}},
		{"podMonitor.enabled=true", []string{"kind: PodMonitor"}, nil},
		{"podMonitor.enabled=false", nil, []string{"PodMonitor", "kind: Namespace"}},
		{"podMonitor.labels.release=prometheus", nil, []string{"PodMonitor", "PrometheusRule", "dashboard"}},
		{"config.health.quietPeriod=5m", []string{"    health:\n      quietPeriod: 5m"}, nil},
		{`config={"resources":[{"name":"nvidia.com/gpu","replicas":4}]}`, []string{"name: nvidia.com/gpu\n", "replicas: 4\n"}, nil},
		{"config.cdi.hook=/opt/gpucdi/gpucdi-hook", []string{"initContainers:", "mv /hook/.new /hook/gpucdi-hook", "path: /opt/gpucdi, type"}, nil},
		{"config.mig.strategy=none", nil, []string{"initContainers:", "name: hook"}},

		// The rights are those that the config asks for.
		{"config.mig.strategy=mixed", []string{"resources: [nodes], verbs: [patch]"}, []string{"watch]", "features.d"}},
		{"config.labels.place=none", nil, []string{"kind: ClusterRole", "features.d"}},
		{"config.labels.place=nfd", []string{"mountPath: /etc/kubernetes/node-feature-discovery/features.d"}, []string{"kind: ClusterRole"}},
		{`config={"labels":{"place":"none"},"nodes":[{"section":"a","labels":{"place":"node"}}]}`, []string{"verbs: [patch, watch]"}, nil},
		{`config={"labels":{"place":"none"},"nodes":[{"selector":"a"}]}`, []string{"verbs: [watch]"}, nil},
		{`config={"nodes":[{"names":["a"],"labels":{"place":"nfd"}}]}`, []string{"verbs: [patch]", "features.d"}, nil},
	} {
		out, err := helm(t.Context(), "template", "gpucdi", setting(tc.set), tc.set)
		if err != nil {
			t.Errorf("%s: %v", tc.set, err)
		}
		for _, part := range tc.has {
			if !strings.Contains(out, part) {
				t.Errorf("%s: %q is not in\n%s", tc.set, part, out)
			}
		}
		for _, part := range tc.lack {
			if strings.Contains(out, part) {
				t.Errorf("%s: %q is in\n%s", tc.set, part, out)
			}
		}
	}
}

// The Prometheus operator's own types have every field, and no other.
func TestTheOperatorReadsItsObjects(t *testing.T) {
	for name, file := range map[string]string{"podMonitor": "podmonitor", "prometheusRule": "prometheusrule"} {
		object, err := helm(t.Context(), "template", "gpucdi", "--show-only", "templates/"+file+".yaml",
			"--set", name+".enabled=true", "--set", name+".labels.release=prometheus")
		if err != nil {
			t.Fatal(err)
		}
		if err := readers.Operator(t.Context(), object); err != nil {
			t.Errorf("%v\n%s", err, object)
		}
		wrong := strings.Replace(object, "spec:", "spec:\n  misspelled: 1", 1)
		if err := readers.Operator(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "misspelled") {
			t.Errorf("%v with\n%s", err, wrong)
		}
	}
}

func TestPrometheusReadsTheAlerts(t *testing.T) {
	file, err := os.ReadFile("../../deploy/gpucdi/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := readers.Rules(t.Context(), string(file)); err != nil {
		t.Error(err)
	}
	for from, to := range map[string]string{"expr:": "exp:", "{{ $labels": "{{ $label"} {
		wrong := strings.Replace(string(file), from, to, 1)
		if err := readers.Rules(t.Context(), wrong); err == nil {
			t.Errorf("it reads %q for %q", to, from)
		}
	}
}

// Grafana's own types have every field of the dashboard.
func TestTheDashboardIsTheFile(t *testing.T) {
	object, err := helm(t.Context(), "template", "gpucdi", "--show-only", "templates/dashboard.yaml", "--set", "dashboard.enabled=true")
	if err != nil {
		t.Fatal(err)
	}
	var configMap v1.ConfigMap
	if err := yaml.UnmarshalStrict([]byte(object), &configMap); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile("../../deploy/gpucdi/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if configMap.Data["gpucdi.json"] != string(file) || configMap.Labels["grafana_dashboard"] != "1" {
		t.Errorf("not the file, or not labelled:\n%s", object)
	}
	if err := readers.Dashboard(t.Context(), string(file)); err != nil {
		t.Error(err)
	}
	wrong := strings.Replace(string(file), `"gridPos"`, `"gripPos"`, 1)
	if err := readers.Dashboard(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "gripPos") {
		t.Errorf("Grafana's word on a key that it does not know: %v", err)
	}
}

// setting is the flag that takes a value.
func setting(value string) string {
	switch {
	case strings.Contains(value, "={"):
		return "--set-json"
	case strings.HasSuffix(value, "=yes"):
		return "--set-string"
	}
	return "--set"
}

func TestValuesThatAreWrongAreRefused(t *testing.T) {
	for value, says := range map[string]string{
		"imge.tag=x":             "imge",
		"maxUnavailable=0":       "maxUnavailable",
		"maxUnavailable=lots":    "maxUnavailable",
		"config.halth.x=1":       "halth",
		"kubeletDir=var/lib":     "kubeletDir",
		"image.pullPolicy=Often": "pullPolicy",
		"port=0":                 "port",
	} {
		if out, err := helm(t.Context(), "template", "gpucdi", "--set", value); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v\n%s", value, err, out)
		}
	}
}
