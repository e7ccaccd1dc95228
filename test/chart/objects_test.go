package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/capabilities"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"

	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install" // registers the types of the API server
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"

	"github.com/gpucdi/gpucdi/test/readers"
)

// combinations are values that together render every template and every kind of field, including extremes such as long
// and numeric names.
var combinations = []string{
	`{}`,
	`{"nameOverride": "plugin", "createNamespace": true, "namespaceOverride": "gpu-system"}`,
	`{"fullnameOverride": "a123456789b123456789c123456789d123456789e123456789f12", "mpsDaemon": {"enabled": true}, "dra": {"enabled": true, "migProfiles": ["1g.10gb+me"]},
	  "dashboard": {"enabled": true}, "serviceMonitor": {"enabled": true}, "networkPolicy": {"enabled": true}, "openshift": {"enabled": true}}`,
	`{"image": {"repository": "registry:5000/gpucdi", "digest": "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"},
	  "imagePullSecrets": [{"name": "registry"}], "podAnnotations": {"sidecar.istio.io/inject": "false"}, "podLabels": {"team": "gpu"}}`,
	`{"nodeSelector": {"gpu": "true"}, "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
	  [{"matchExpressions": [{"key": "feature.node.kubernetes.io/pci-10de.present", "operator": "In", "values": ["true"]}]}]}}},
	  "tolerations": [{"operator": "Exists"}], "priorityClassName": "", "runtimeClassName": "runc"}`,
	`{"updateStrategy": {"type": "OnDelete"}, "resources": {"requests": {"cpu": "100m"}}, "extraArgs": ["--spread=10s"],
	  "extraEnv": [{"name": "GOMEMLIMIT", "value": "100MiB"}, {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}`,
	`{"updateStrategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "10%"}}, "podSecurityContext": {"supplementalGroups": [44]},
	  "securityContext": {"seLinuxOptions": {"type": "super_t"}, "appArmorProfile": {"type": "Unconfined"}}}`,
	`{"serviceAccount": {"create": false, "name": "existing"}, "existingConfigMap": "node.config", "namespaceOverride": "7", "watchNodes": true}`,
	`{"serviceAccount": {"name": "agent", "annotations": {"a": "b"}}, "dra": {"enabled": true}, "podMonitor": {"enabled": true, "labels": {"a": "b"}},
	  "prometheusRule": {"enabled": true}, "config": {"cdi": {"hook": "/opt/gpucdi/gpucdi-hook"}, "labels": {"place": "nfd"}}}`,
	`{"config": {"labels": {"place": "none"}, "nodes": [{"section": "a", "labels": {"place": "node"}}]}, "openshift": {"enabled": true},
	  "networkPolicy": {"enabled": true, "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}, {"namespaceSelector": {"matchLabels": {"a": "b"}}}]}}`,
	`{"dra": {"enabled": true}, "vcuda": {"enabled": true, "domain": "tencent.com", "memoryUnit": "256Mi"}, "openshift": {"enabled": true}}`,
	`{"kubeletDir": "/var/lib/k0s/kubelet", "cdiDir": "/etc/cdi", "driverRoot": "/run/nvidia/driver", "loadModules": true, "port": 10000}`,
}

func init() {
	capabilities.Initialize(capabilities.Capabilities{AllowPrivileged: true}) // as the API server does
}

// The API server accepts every object, and helm lint every combination of values.
func TestObjects(t *testing.T) {
	kinds := map[string]bool{}
	for _, values := range combinations {
		if out, err := helmValues(t, values, "lint", "--strict"); err != nil {
			t.Errorf("%s: %v\n%s", values, err, out)
		}
		for _, release := range []string{"gpucdi", "123", "no", "r123456789s123456789t123456789u123456789v123456789w12"} {
			out, err := helmValues(t, values, "template", release, "--namespace", "456")
			if err != nil {
				t.Errorf("%s: %v", values, err)
				continue
			}
			for _, object := range objects(out) {
				kind, err := create(t.Context(), object)
				if err != nil {
					t.Errorf("%s: %v", values, err)
				}
				kinds[kind] = true
			}
		}
	}
	for kind := range strategies {
		if !kinds[kind] {
			t.Errorf("no combination of values renders a %s", kind)
		}
	}
}

func TestCreateRejectsInvalidObjects(t *testing.T) {
	out, err := helm(t.Context(), "template", "gpucdi", "--show-only", "templates/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		"containers:":                "container:",                // an unknown field
		"maxUnavailable: 0":          "maxUnavailable: 1",         // with maxSurge
		"periodSeconds: 30":          "periodSeconds: -1",         // an invalid number
		"imagePullPolicy: If":        "imagePullPolicy: Unless",   // an unknown constant
		"name: pod-resources, mount": "name: pod-resource, mount", // no such volume
		"privileged: true":           "privileged: yes please",    // a wrong type
		"mountPath: /run/gpucdi":     "mountPath: /host",          // mounted twice
		"name: gpucdi\n  namespace":  "name: GPUcdi\n  namespace", // an invalid name
	} {
		wrong := strings.ReplaceAll(out, from, to)
		if _, err := create(t.Context(), wrong); err == nil || wrong == out {
			t.Errorf("%q instead of %q is accepted", to, from)
		}
	}
}

// helmValues runs a helm command on the chart with values as YAML or JSON.
func helmValues(t *testing.T, values, command string, args ...string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	return helm(t.Context(), command, append(args, "--values", file)...)
}

// objects returns the documents of a manifest.
func objects(manifest string) (objects []string) {
	for document := range strings.SplitSeq("\n"+manifest, "\n---") {
		if strings.Contains(document, "\nkind:") {
			objects = append(objects, document)
		}
	}
	return objects
}

// strategies are the create strategies of the API server, by kind.
var strategies = map[string]rest.RESTCreateStrategy{
	"ClusterRole":                      clusterrole.Strategy,
	"ClusterRoleBinding":               clusterrolebinding.Strategy,
	"ConfigMap":                        configmap.Strategy,
	"DaemonSet":                        daemonset.Strategy,
	"Deployment":                       deployment.Strategy,
	"DeviceClass":                      deviceclass.Strategy,
	"Job":                              job.Strategy,
	"MutatingAdmissionPolicy":          mutatingadmissionpolicy.NewStrategy(nil, nil),
	"MutatingAdmissionPolicyBinding":   mutatingadmissionpolicybinding.NewStrategy(nil, nil, nil),
	"Namespace":                        namespace.Strategy,
	"NetworkPolicy":                    networkpolicy.Strategy,
	"Role":                             role.Strategy,
	"RoleBinding":                      rolebinding.Strategy,
	"Service":                          service.Strategy,
	"ServiceAccount":                   serviceaccount.Strategy,
	"ValidatingAdmissionPolicy":        validatingadmissionpolicy.NewStrategy(nil, nil),
	"ValidatingAdmissionPolicyBinding": validatingadmissionpolicybinding.NewStrategy(nil, nil, nil),
}

// create decodes an object strictly and prepares its creation as the API server does, with all validation. It returns
// the kind of the object. Objects of the Prometheus operator are only decoded, without returning a kind.
func create(ctx context.Context, object string) (string, error) {
	if strings.Contains(object, "apiVersion: monitoring.coreos.com/") {
		return "", readers.Operator(ctx, object)
	}
	codecs := serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict)
	internal, versioned, err := codecs.UniversalDecoder().Decode([]byte(object), nil, nil)
	if err != nil {
		return "", fmt.Errorf("decoding: %w", err)
	}
	strategy := strategies[versioned.Kind]
	if strategy == nil {
		return versioned.Kind, fmt.Errorf("no strategy for kind %s", versioned.Kind)
	}
	metadata, err := meta.Accessor(internal)
	if err != nil {
		return versioned.Kind, err
	}
	rest.FillObjectMetaSystemFields(metadata)
	if service, ok := internal.(*core.Service); ok {
		service.Spec.ClusterIPs = []string{service.Spec.ClusterIP} // as the registry does before BeforeCreate
	}
	ctx = request.WithRequestInfo(request.WithNamespace(ctx, metadata.GetNamespace()), &request.RequestInfo{
		APIGroup: versioned.Group, APIVersion: versioned.Version,
	})
	return versioned.Kind, rest.BeforeCreate(strategy, ctx, internal)
}
