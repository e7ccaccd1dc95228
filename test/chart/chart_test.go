package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/gpucdi/gpucdi/test/readers"
)

func TestPlainManifest(t *testing.T) {
	want, err := render(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../deploy/gpucdi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("deploy/gpucdi.yaml is out of date; run make manifests")
	}
}

// A ConfigMap in the plain manifest may select sections by node labels, which requires the watch permission.
func TestPlainManifestPermissions(t *testing.T) {
	manifest, err := render(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(manifest, "resources: [nodes], verbs: [patch, watch]") {
		t.Errorf("no permission to watch nodes in\n%s", manifest)
	}
}

// Commands that kubectl exec runs in the agent's container inspect the same node with the same config. Settings that
// several commands share are therefore environment variables, not arguments of serve.
func TestAgentEnvironment(t *testing.T) {
	object, err := helm(t.Context(), "template", "gpucdi", "--show-only", "templates/daemonset.yaml",
		"--set", "loadModules=true", "--set", "driverRoot=/opt/driver")
	if err != nil {
		t.Fatal(err)
	}
	var agents appsv1.DaemonSet
	if err := yaml.UnmarshalStrict([]byte(object), &agents); err != nil {
		t.Fatal(err)
	}
	agent := agents.Spec.Template.Spec.Containers[0]
	if want := []string{"serve", "--listen=:9435", "--load-modules"}; !slices.Equal(agent.Args, want) {
		t.Errorf("the arguments are %q, want only those of serve, %q", agent.Args, want)
	}
	variables := map[string]string{}
	for _, v := range agent.Env {
		variables[v.Name] = v.Value
	}
	// GPUCDI_NODE_NAME has valueFrom instead of a value.
	for name, want := range map[string]string{"GPUCDI_CONFIG": "/etc/gpucdi/config.yaml", "GPUCDI_HOST_ROOT": "/host",
		"GPUCDI_DRIVER_ROOT": "/opt/driver", "GPUCDI_ADDRESS": "127.0.0.1:9435", "GPUCDI_NODE_NAME": ""} {
		if got, set := variables[name]; !set || got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
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
		{"spread=10s", []string{"{name: GPUCDI_SPREAD, value: 10s}"}, nil},
		{"updateStrategy.rollingUpdate.maxSurge=10%", []string{"maxSurge: 10%", "maxUnavailable: 0"}, nil},
		{"updateStrategy.type=OnDelete", []string{"type: OnDelete"}, []string{"maxSurge"}},
		// The default, which also shows that empty values render no keys.
		{"createNamespace=false", nil, []string{"affinity", "securityContext: {}", "runtimeClassName", "kind: Namespace"}},
		{"nodeSelector.gpu=yes", []string{"gpu: \"yes\""}, nil},
		{"podLabels.team=gpu", []string{"        team: gpu\n"}, []string{"\n    team: gpu"}},
		{"podAnnotations.a=b", []string{"      annotations:\n        a: b\n    spec:"}, nil},
		{"extraEnv[0].name=A,extraEnv[0].value=b", []string{"            - name: A\n              value: b\n          ports:"}, nil},
		{"imagePullSecrets[0].name=registry", []string{"      imagePullSecrets:\n        - name: registry\n"}, nil},
		{"runtimeClassName=runc", []string{"      runtimeClassName: runc\n"}, nil},
		{"priorityClassName=high", []string{"      priorityClassName: high\n"}, []string{"system-node-critical"}},
		{`podSecurityContext={"supplementalGroups":[44]}`, []string{"      securityContext:\n        supplementalGroups:\n        - 44\n"}, nil},
		{"tolerations[0].key=gpu", []string{"gpucdi.dev/gpu-fault, operator: Exists}\n        - key: gpu\n"}, nil},
		{"resources.requests.cpu=123m", []string{"            requests:\n              cpu: 123m\n"}, nil},
		{`affinity={"podAntiAffinity":{}}`, []string{"      affinity:\n        podAntiAffinity: {}\n"}, nil},
		{"image.digest=sha256:" + strings.Repeat("0", 64), []string{"image: gpucdi/gpucdi@sha256:000"}, []string{"gpucdi/gpucdi:"}},
		{"extraArgs[0]=--a=1", []string{"            - --listen=:9435\n            - --a=1\n"}, nil},
		{"securityContext.seLinuxOptions.type=super_t", []string{"privileged: true", "type: super_t"}, nil},

		// Every name depends on the overrides, but the pod selector does not.
		{"nameOverride=plugin", []string{"name: gpucdi-plugin\n", "name: gpucdi-plugin-events\n", "{app.kubernetes.io/name: gpucdi,"}, []string{"name: gpucdi\n  namespace", "name: gpucdi}"}},
		{`dashboard={"enabled":true}`, []string{"name: gpucdi-dashboard\n"}, nil},
		{"fullnameOverride=gpu", []string{"name: gpu\n", "configMap: {name: gpu}", "serviceAccountName: gpu\n", "name: gpu-unlabel\n", "{app.kubernetes.io/name: gpucdi,"},
			[]string{"name: gpucdi\n  namespace", "name: gpucdi}", "gpucdi-"}},
		{"createNamespace=true,namespaceOverride=gpu", []string{"kind: Namespace\nmetadata:\n  name: \"gpu\"", "helm.sh/resource-policy: keep"}, nil},
		{"namespaceOverride=gpu", []string{"namespace: \"gpu\"\n", "namespace: \"gpu\"}"}, []string{"namespace: \"default\""}},
		{`serviceAccount={"create":false,"name":"existing"}`, []string{"serviceAccountName: existing\n", "{kind: ServiceAccount, name: existing,"}, []string{"{kind: ServiceAccount, name: gpucdi,"}},
		{`serviceAccount={"name":"agent","annotations":{"a":"b"}}`, []string{"  name: agent\n  namespace: \"default\"\n", "  annotations:\n    a: b\n", "serviceAccountName: agent\n"}, nil},
		{`dra={"enabled":true}`, []string{`"system:serviceaccount:default:gpucdi"`}, []string{"gpucdi-mps", "hostPID"}},
		{"mpsDaemon.enabled=true", []string{"name: gpucdi-mps\n", "updateStrategy: {type: OnDelete}", "hostPID: true",
			"resources: [pods], verbs: [get]", "args: [mps]"}, nil},

		// The chart cannot read the ConfigMap, so it grants what a config may require.
		{"existingConfigMap=mine", []string{"configMap: {name: mine}", "verbs: [patch, watch]"}, []string{"kind: ConfigMap", "NodeConfig"}},

		{"serviceMonitor.enabled=true", []string{"kind: ServiceMonitor", "kind: Service\n", "publishNotReadyAddresses: true"}, []string{"PodMonitor"}},
		{"openshift.enabled=true", []string{"system:openshift:scc:privileged", "system:openshift:scc:nonroot-v2", "runAsUser: 65534"}, []string{"spc_t"}},
		{`openshift={"enabled":true}`, nil, []string{"initContainers"}},
		{"openshift.enabled=false", nil, []string{"scc"}},
		{"driverRoot=/opt/driver", []string{"{name: GPUCDI_DRIVER_ROOT, value: /opt/driver}"}, nil},
		{"kubeletDir=/var/lib/k0s/kubelet", []string{"path: /var/lib/k0s/kubelet/pod-resources", "path: /var/lib/kubelet/device-plugins"}, nil},
		{"loadModules=true", []string{"- --load-modules"}, nil},
		{"hostPID=true", []string{"hostPID: true"}, nil},
		{"hostPID=false", nil, []string{"hostPID"}},
		{"port=9999", []string{"containerPort: 9999", "--listen=:9999", "127.0.0.1:9999"}, []string{"9435"}},
		{"networkPolicy.enabled=false", nil, []string{"NetworkPolicy"}},
		{"podMonitor.enabled=true", []string{"kind: PodMonitor"}, nil},
		{"podMonitor.enabled=false", nil, []string{"PodMonitor", "kind: Namespace"}},
		{"podMonitor.labels.release=prometheus", nil, []string{"PodMonitor", "PrometheusRule", "dashboard"}},
		{"config.health.quietPeriod=5m", []string{"    health:\n      quietPeriod: 5m"}, nil},
		{`config={"resources":[{"name":"nvidia.com/gpu","replicas":4}]}`, []string{"name: nvidia.com/gpu\n", "replicas: 4\n"}, nil},
		{"config.cdi.hook=/opt/gpucdi/gpucdi-hook", []string{"initContainers:", "mv /hook/.new /hook/gpucdi-hook", "path: /opt/gpucdi, type"}, nil},
		{"config.nodes[0].section=a,config.nodes[0].cdi.hook=/opt/gpucdi/hook", []string{"mv /hook/.new /hook/hook", "path: /opt/gpucdi, type"}, nil},
		{"config.mig.strategy=none", nil, []string{"initContainers:", "name: hook"}},
		{"cdiDir=/var/cdi/dynamic", []string{"{name: GPUCDI_CDI_DIR, value: /var/cdi/dynamic}", "{name: cdi, mountPath: /var/cdi/dynamic}", "path: /var/cdi/dynamic, type"}, nil},

		// Without DRA, none of its flags, mounts, permissions and objects are rendered.
		{"dra.enabled=false", []string{"mountPath: /var/lib/kubelet/device-plugins"}, []string{"dra", "resource.k8s.io", "ValidatingAdmissionPolicy", "plugins_registry"}},
		{"dra.enabled=true", []string{"--dra-driver-name=gpu.nvidia.com", "mountPath: /var/lib/kubelet/plugins_registry", "resources: [resourceslices]",
			"kind: ValidatingAdmissionPolicyBinding", "extendedResourceName: nvidia.com/gpu", "name: mig.nvidia.com"}, []string{"extendedResourceName: nvidia.com/mig"}},
		{`dra={"enabled":true,"createClasses":false}`, []string{"--dra-driver-name=gpu.nvidia.com"}, []string{"kind: DeviceClass"}},
		{`dra={"enabled":true,"driverName":"gpu.example.com","migProfiles":["1g.10gb+me"]}`, []string{"--dra-driver-name=gpu.example.com",
			"name: mig-1g.10gb.me.nvidia.com", "extendedResourceName: nvidia.com/mig-1g.10gb.me", `device.attributes["gpu.example.com"].profile == "1g.10gb+me"`}, nil},

		// The permissions follow from the config.
		{"config.mig.strategy=mixed", []string{"resources: [nodes], verbs: [patch]"}, []string{"watch]", "features.d"}},
		{"config.labels.place=none", nil, []string{"kind: ClusterRole", "features.d"}},
		{"config.labels.place=nfd", []string{"mountPath: /etc/kubernetes/node-feature-discovery/features.d"}, []string{"kind: ClusterRole"}},
		{`config={"labels":{"place":"none"},"nodes":[{"section":"a","labels":{"place":"node"}}]}`, []string{"verbs: [patch, watch]"}, nil},
		{`config={"labels":{"place":"none"},"nodes":[{"selector":"a"}]}`, []string{"verbs: [watch]"}, nil},
		{"watchNodes=true", []string{"verbs: [patch, watch]"}, nil},
		{"config.remediation.nodeCondition=false", []string{"resources: [nodes/status], verbs: [patch]", "resources: [nodes], verbs: [get, patch]"}, nil},
		{`config={"labels":{"place":"none"},"nodes":[{"names":["a"],"remediation":{"taint":"NoSchedule"}}]}`,
			[]string{"resources: [nodes/status], verbs: [patch]", `args: ["unlabel"]`, "key: gpucdi.dev/gpu-fault"}, nil},
		{"config.mig.strategy=single", []string{"key: gpucdi.dev/gpu-fault"}, []string{"nodes/status", "remediation"}},
		{`config={"nodes":[{"names":["a"],"labels":{"place":"nfd"}}]}`, []string{"verbs: [patch]", "features.d"}, nil},
	} {
		out, err := helm(t.Context(), "template", "gpucdi", setFlag(tc.set), tc.set)
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

// With DRA, the agent may get and list claims, but not watch them. Without DRA, no role has permissions for claims.
func TestClaimPermissions(t *testing.T) {
	for enabled, want := range map[string]map[string][]string{
		"true":  {"gpucdi-dra": {"get", "list"}, "gpucdi-claims": {"list"}}, // gpucdi-claims: the check before an uninstall
		"false": {},
	} {
		manifest, err := helm(t.Context(), "template", "gpucdi", "--set", "dra.enabled="+enabled)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][]string{}
		for _, object := range objects(manifest) {
			var role rbac.ClusterRole // a Role has the same fields; other kinds have no rules
			if !strings.Contains(object, "\nrules:") {
				continue
			}
			if err := yaml.Unmarshal([]byte(object), &role); err != nil {
				t.Fatal(err)
			}
			for _, r := range role.Rules {
				if slices.Contains(r.Resources, "resourceclaims") || slices.Contains(r.Resources, "*") {
					got[role.Name] = append(got[role.Name], r.Verbs...)
				}
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("dra.enabled=%s: permissions for claims %v, want %v", enabled, got, want)
		}
	}
}

// The policy selects the agents' pods, and allows only the given peers to connect to them, only to the metrics port.
// Without peers it allows no pod.
func TestNetworkPolicy(t *testing.T) {
	daemonSet, err := helm(t.Context(), "template", "gpucdi", "--show-only", "templates/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var agents appsv1.DaemonSet
	if err := yaml.UnmarshalStrict([]byte(daemonSet), &agents); err != nil {
		t.Fatal(err)
	}
	port := intstr.FromString("metrics")
	for from, want := range map[string][]networking.NetworkPolicyIngressRule{
		`[]`: {},
		`[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"monitoring"}}},{"ipBlock":{"cidr":"10.0.0.0/8"}}]`: {{
			From: []networking.NetworkPolicyPeer{
				{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "monitoring"}}},
				{IPBlock: &networking.IPBlock{CIDR: "10.0.0.0/8"}},
			},
			Ports: []networking.NetworkPolicyPort{{Port: &port}},
		}},
	} {
		object, err := helm(t.Context(), "template", "gpucdi", "--show-only", "templates/networkpolicy.yaml",
			"--set", "networkPolicy.enabled=true", "--set-json", "networkPolicy.from="+from)
		if err != nil {
			t.Fatal(err)
		}
		var policy networking.NetworkPolicy
		if err := yaml.UnmarshalStrict([]byte(object), &policy); err != nil {
			t.Fatalf("%v\n%s", err, object)
		}
		if !reflect.DeepEqual(policy.Spec.Ingress, want) || !slices.Equal(policy.Spec.PolicyTypes, []networking.PolicyType{networking.PolicyTypeIngress}) {
			t.Errorf("from %s:\n%s", from, object)
		}
		if !reflect.DeepEqual(policy.Spec.PodSelector, *agents.Spec.Selector) {
			t.Errorf("the policy selects %v, want the agents: %v", policy.Spec.PodSelector, agents.Spec.Selector)
		}
	}
	if ports := agents.Spec.Template.Spec.Containers[0].Ports; len(ports) != 1 || ports[0].Name != "metrics" {
		t.Errorf("the agents' ports are %v, want only metrics", ports)
	}
}

// The objects decode into the Prometheus operator's types. Unknown fields are rejected.
func TestPrometheusOperatorObjects(t *testing.T) {
	for name, file := range map[string]string{"podMonitor": "podmonitor", "serviceMonitor": "servicemonitor", "prometheusRule": "prometheusrule"} {
		object, err := helm(t.Context(), "template", "gpucdi", "--show-only", "templates/"+file+".yaml",
			"--set", name+".enabled=true", "--set", name+".labels.release=prometheus")
		if err != nil {
			t.Fatal(err)
		}
		parts := objects(object)
		object = parts[len(parts)-1]
		if err := readers.Operator(t.Context(), object); err != nil {
			t.Errorf("%v\n%s", err, object)
		}
		wrong := strings.Replace(object, "spec:", "spec:\n  misspelled: 1", 1)
		if err := readers.Operator(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "misspelled") {
			t.Errorf("a misspelled field returns %v:\n%s", err, wrong)
		}
	}
}

// Prometheus accepts the alerting rules, and each links to its section of docs/alerts.md.
func TestAlerts(t *testing.T) {
	file, err := os.ReadFile("../../deploy/gpucdi/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	validate := func(rules string) error {
		_, err := readers.Prometheus(t.Context(), readers.Scenario{Rules: rules})
		return err
	}
	if err := validate(string(file)); err != nil {
		t.Error(err)
	}
	for from, to := range map[string]string{"expr:": "exp:", "{{ $labels": "{{ $label"} {
		wrong := strings.Replace(string(file), from, to, 1)
		if err := validate(wrong); err == nil {
			t.Errorf("Prometheus accepts %q instead of %q", to, from)
		}
	}

	runbooks, err := os.ReadFile("../../docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert       string
				Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(file, &rules); err != nil {
		t.Fatal(err)
	}
	for _, r := range rules.Groups[0].Rules {
		if !strings.Contains(string(runbooks), "\n## "+r.Alert+"\n") || !strings.HasSuffix(r.Annotations["runbook_url"], "/docs/alerts.md#"+strings.ToLower(r.Alert)) {
			t.Errorf("alert %s has no section in docs/alerts.md, or does not link to it: %s", r.Alert, r.Annotations["runbook_url"])
		}
	}
}

// After a pod of the agent was replaced, Prometheus has the series of both pods until those of the old one are stale.
func TestAlertsDuringRollout(t *testing.T) {
	file, err := os.ReadFile("../../deploy/gpucdi/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var scrape strings.Builder
	for _, pod := range []string{"old", "new"} {
		for i := range 2 {
			gpu := fmt.Sprintf(`gpu="GPU-%d",pod=%q`, i, pod)
			fmt.Fprintf(&scrape, "gpucdi_gpu_info{%s,index=\"%d\",product=\"H100\"} 1\n", gpu, i)
			fmt.Fprintf(&scrape, "gpucdi_gpu_healthy{%s,code=\"%s\"} %d\n", gpu, []string{"xid_79", ""}[i], i)
			fmt.Fprintf(&scrape, "gpucdi_gpu_ecc_errors_total{%s,kind=\"uncorrected\"} %d\n", gpu, i)
		}
		fmt.Fprintf(&scrape, "gpucdi_build_info{version=\"1\",pod=%q} 1\n", pod)
	}
	both := scrape.String()
	alone := regexp.MustCompile(`.*pod="old".*\n`).ReplaceAllString(both, "")
	result, err := readers.Prometheus(t.Context(), readers.Scenario{
		Rules: string(file), Target: map[string]string{"instance": "node", "job": "gpucdi"},
		Phases: []readers.Phase{{Scrape: both, Duration: 20 * time.Minute}, {Scrape: alone, Duration: 20 * time.Minute}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"GPUUncorrectedErrors 1", "GPUUnhealthy 0"}
	for i := range result.Alerts {
		var fire []string
		for _, a := range result.Alerts[i] {
			fire = append(fire, a.Name+" "+a.Labels["index"])
		}
		slices.Sort(fire)
		if fire = slices.Compact(fire); !slices.Equal(fire, want) {
			t.Errorf("in phase %d fire %q, want %q", i, fire, want)
		}
	}
}

// The dashboard decodes into Grafana's types. Unknown fields are rejected.
func TestDashboard(t *testing.T) {
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
		t.Errorf("the ConfigMap does not contain dashboard.json, or lacks the label:\n%s", object)
	}
	if err := readers.Dashboard(t.Context(), string(file)); err != nil {
		t.Error(err)
	}
	for _, at := range []int{strings.Index(string(file), "gridPos"), strings.LastIndex(string(file), "gridPos")} { // the last one is in a collapsed row
		wrong := string(file[:at]) + "gripPos" + string(file[at+len("gridPos"):])
		if err := readers.Dashboard(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "gripPos") {
			t.Errorf("a misspelled field returns %v", err)
		}
	}
}

// panel is a panel of the dashboard. A row contains its panels while it is collapsed.
type panel struct {
	ID      int
	Title   string
	GridPos struct{ X, Y, W, H int }
	Panels  []panel
}

// overlaps reports whether two panels overlap.
func (p panel) overlaps(other panel) bool {
	a, b := p.GridPos, other.GridPos
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}

// Panels have different IDs and titles. They do not overlap, nor do those of a collapsed row.
func TestDashboardLayout(t *testing.T) {
	text, err := os.ReadFile("../../deploy/gpucdi/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard panel
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	const columns = 24
	ids, titles := map[int]bool{}, map[string]bool{}
	check := func(panels []panel) {
		for i, p := range panels {
			if p.ID == 0 || ids[p.ID] || p.Title == "" || titles[p.Title] {
				t.Errorf("panel %d, %q: the ID or the title is missing or not unique", p.ID, p.Title)
			}
			ids[p.ID], titles[p.Title] = true, true
			if g := p.GridPos; g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > columns {
				t.Errorf("panel %q does not fit at %+v", p.Title, g)
			}
			if j := slices.IndexFunc(panels[:i], p.overlaps); j >= 0 {
				t.Errorf("panel %q overlaps %q", p.Title, panels[j].Title)
			}
		}
	}
	check(dashboard.Panels)
	for _, row := range dashboard.Panels {
		check(row.Panels)
	}
}

// The schema rejects variables in extraEnv that the chart sets.
func TestReservedVariables(t *testing.T) {
	template, err := os.ReadFile("../../deploy/gpucdi/templates/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, match := range regexp.MustCompile(`\bname: ([A-Z][A-Z_]*)\b`).FindAllStringSubmatch(string(template), -1) {
		want = append(want, match[1])
	}
	var schema struct {
		Properties struct {
			ExtraEnv struct {
				Items struct {
					Properties struct {
						Name struct{ Not struct{ Enum []string } }
					}
				}
			}
		}
	}
	text, err := os.ReadFile("../../deploy/gpucdi/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	got := schema.Properties.ExtraEnv.Items.Properties.Name.Not.Enum
	if len(want) < 5 || !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("values.schema.json rejects %v in extraEnv, but daemonset.yaml sets %v", got, want)
	}
}

// setFlag returns the Helm flag for a value.
func setFlag(value string) string {
	switch {
	case strings.Contains(value, "={"):
		return "--set-json"
	case strings.HasSuffix(value, "=yes"), strings.HasPrefix(value, "podLabels"):
		return "--set-string"
	}
	return "--set"
}

// The schema, not a template or the cluster, rejects invalid values and names them.
func TestInvalidValues(t *testing.T) {
	for value, want := range map[string]string{
		"imge.tag=x":   "imge",
		"spread=often": "spread",
		"updateStrategy.rollingUpdate.maxSurge=lots": "maxSurge",
		"updateStrategy.type=Recreate":               "type",
		"nodes.selector.a=b":                         "nodes",
		"fullnameOverride=a_b":                       "fullnameOverride",
		"fullnameOverride=no":                        "fullnameOverride",
		"nameOverride=1e3":                           "nameOverride",
		"priorityClassName=a: b":                     "priorityClassName",
		"existingConfigMap=0x1f":                     "existingConfigMap",
		"image.digest=sha256:0":                      "digest",
		`podLabels.app\.kubernetes\.io/name=x`:       "app.kubernetes.io/name",
		"extraEnv[0].name=GPUCDI_CONFIG":             "extraEnv",
		"serviceAccount.create=false":                "serviceAccount",
		"tolerations[0].effect=Never":                "effect",
		"nodeSelector.gpu=true":                      "nodeSelector",
		"config.halth.x=1":                           "halth",
		"kubeletDir=var/lib":                         "kubeletDir",
		"image.pullPolicy=Often":                     "pullPolicy",
		"image.repository=a b":                       "repository",
		"port=0":                                     "port",
		"watchNodes=1":                               "watchNodes",

		"vcuda.memoryUnit=1Gi":      "memoryUnit",
		"vcuda.domain=a\"b":         "domain",
		"vcuda.replicas=0":          "replicas",
		"vcuda.deviceClassName=a b": "deviceClassName",

		"networkPolicy.from=monitoring":   "networkPolicy",
		"networkPolicy.from[0].pods=all":  "pods",
		"networkPolicy.form[0].ipBlock=x": "form",

		// Values that templates insert into YAML and into a command.
		"cdiDir=/opt/a\\,b":             "cdiDir",
		"cdiDir=/opt/a}":                "cdiDir",
		"driverRoot=/a: b":              "driverRoot",
		"config.cdi.hook=hook":          "hook",
		"config.cdi.hook=5":             "hook",
		"config.cdi.hook=/opt/h; rm":    "hook",
		"config.labels.place=5":         "place",
		"config.nodes[0].labels=none":   "labels",
		"config.nodes[0].section=5":     "section",
		"config.nodes[0].selector[0]=a": "selector",

		// In Helm, null removes the default of a value.
		"config=null": "config", "image=null": "image", "updateStrategy=null": "updateStrategy", "port=null": "port", "resources=null": "resources",
		"serviceAccount=null": "serviceAccount", "openshift=null": "openshift", "securityContext=null": "securityContext", "kubeletDir=null": "kubeletDir", "cdiDir=null": "cdiDir", "nfdDir=null": "nfdDir",
		"podMonitor=null": "podMonitor", "prometheusRule=null": "prometheusRule", "dashboard=null": "dashboard",
		"dashboard.labels=null": "labels", "networkPolicy=null": "networkPolicy", "image.pullPolicy=null": "pullPolicy",
	} {
		out, err := helm(t.Context(), "template", "gpucdi", "--set", value)
		if err == nil || !strings.Contains(err.Error(), "schema") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\n%.200s", value, err, out)
		}
	}
}

// Values that exclude or require others are rejected with the reasons, all in one error.
func TestConflictingValues(t *testing.T) {
	for values, want := range map[string][]string{
		"updateStrategy.rollingUpdate.maxSurge=0":                                                      {"maxSurge and maxUnavailable"},
		"updateStrategy.rollingUpdate.maxUnavailable=10%":                                              {"maxSurge and maxUnavailable"},
		"updateStrategy.rollingUpdate.maxSurge=null":                                                   {"maxSurge and maxUnavailable"},
		"podMonitor.enabled=true,serviceMonitor.enabled=true":                                          {"podMonitor and serviceMonitor"},
		"existingConfigMap=a,config.mig.strategy=mixed":                                                {"existingConfigMap and config"},
		"config.flags.x=1,config.imex.x=1,config.version=v1":                                           {"config.flags is", "config.imex is", "config.version is"},
		"config.allocation.mode=dra":                                                                   {"dra.enabled"},
		"config.nodes[0].section=a,config.nodes[0].allocation.mode=dra":                                {"dra.enabled"},
		"config.resources[0].name=nvidia.com/gpu,config.resources[0].mode=dra":                         {"dra.enabled"},
		"config.cdi.hook=/opt/a,config.nodes[0].section=a,config.nodes[0].cdi.hook=/opt/b":             {"cdi.hook in config has several paths"},
		"createNamespace=true":                                                                         {"createNamespace requires namespaceOverride"},
		"createNamespace=true,namespaceOverride=default":                                               {"createNamespace requires namespaceOverride"},
		"existingConfigMap=a,config.allocation.mode=dra":                                               {"existingConfigMap and config", "dra.enabled"},
		"migStrategy=mixed,config.sharing.timeSlicing.x=1,config.map.default=version,gfd.enabled=true": {"config.mig.strategy", "config.resources", "config.nodes", "config.labels.place"},
	} {
		_, err := helm(t.Context(), "template", "gpucdi", "--set", values)
		if err == nil {
			t.Errorf("%s is accepted", values)
			continue
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want %s", values, err, part)
			}
		}
	}
}
