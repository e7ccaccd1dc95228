{{- /* The name of the objects, at most 53 characters: Jobs append up to 8, and their names are limited to 63. */ -}}
{{- define "gpucdi.name" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "gpucdi.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end }}

{{- define "gpucdi.serviceAccount" -}}
{{- default (include "gpucdi.name" .) .Values.serviceAccount.name -}}
{{- end }}

{{- define "gpucdi.labels" -}}
app.kubernetes.io/name: gpucdi
app.kubernetes.io/instance: {{ quote .Release.Name }}
{{- end }}

{{- /* The pod selector. It is immutable, so it must not depend on values. */ -}}
{{- define "gpucdi.selector" -}}
{app.kubernetes.io/name: gpucdi, app.kubernetes.io/instance: {{ quote .Release.Name }}}
{{- end }}

{{- /* "true" if labels.place has the given value for any node. */ -}}
{{- define "gpucdi.labelsAt" -}}
{{- $place := .place -}}
{{- $used := eq $place (dig "labels" "place" "node" .config) -}}
{{- range .config.nodes }}{{ if eq $place (dig "labels" "place" "" .) }}{{ $used = true }}{{ end }}{{ end -}}
{{- if $used }}true{{ end -}}
{{- end }}

{{- /* The different paths of the hook in the config, separated by spaces. */ -}}
{{- define "gpucdi.hooks" -}}
{{- $paths := list (dig "cdi" "hook" "" .Values.config) -}}
{{- range .Values.config.nodes }}{{ $paths = append $paths (dig "cdi" "hook" "" .) }}{{ end -}}
{{- join " " (uniq (compact $paths)) -}}
{{- end }}

{{- /* "true" if a section of the config selects nodes by label. */ -}}
{{- define "gpucdi.byLabel" -}}
{{- $found := false -}}
{{- range .Values.config.nodes }}{{ if or .section .selector }}{{ $found = true }}{{ end }}{{ end -}}
{{- if $found }}true{{ end -}}
{{- end }}

{{- /*
"true" if the config has remediation for any node, even if it is disabled: the agents then remove condition and taint.
Also "true" with existingConfigMap, which the chart cannot read.
*/ -}}
{{- define "gpucdi.remediation" -}}
{{- $found := or (hasKey .Values.config "remediation") .Values.existingConfigMap -}}
{{- range .Values.config.nodes }}{{ if hasKey . "remediation" }}{{ $found = true }}{{ end }}{{ end -}}
{{- if $found }}true{{ end -}}
{{- end }}

{{- /* Toleration of the taint of remediation, which the agent itself removes. */ -}}
{{- define "gpucdi.toleration" -}}
- {key: gpucdi.dev/gpu-fault, operator: Exists}
{{- end }}

{{- define "gpucdi.image" -}}
{{ .Values.image.repository }}
{{- with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* "true" on OpenShift. */ -}}
{{- define "gpucdi.openshift" -}}
{{- if or .Values.openshift.enabled (.Capabilities.APIVersions.Has "security.openshift.io/v1") }}true{{ end -}}
{{- end }}

{{- /*
A Job that runs a gpucdi command when the release is deleted, with its own service account. Parameters: root (the chart's
context), name, when ("pre-delete" or "post-delete"), retries, args of gpucdi, and rules of its ClusterRole.
*/ -}}
{{- define "gpucdi.job" -}}
{{- $labels := include "gpucdi.labels" .root | nindent 4 }}
{{- $name := printf "%s-%s" (include "gpucdi.name" .root) .name }}
{{- $namespace := include "gpucdi.namespace" .root }}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $name }}
  namespace: {{ quote $namespace }}
  labels:
    {{- $labels }}
  annotations:
    {{- include "gpucdi.hook" (list .when 1) | nindent 4 }}
    # Helm 4 prints the log of a failed Job. Helm 3 ignores this annotation.
    helm.sh/hook-output-log-policy: hook-failed
spec:
  backoffLimit: {{ .retries }}
  activeDeadlineSeconds: 600
  template:
    {{- if or .root.Values.podLabels .root.Values.podAnnotations }}
    metadata:
      {{- with .root.Values.podLabels }}
      labels:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .root.Values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- end }}
    spec:
      serviceAccountName: {{ $name }}
      restartPolicy: Never
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      tolerations:
        {{- include "gpucdi.toleration" . | nindent 8 }}
        {{- with .root.Values.tolerations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      containers:
        - name: {{ .name }}
          image: {{ include "gpucdi.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args: {{ toJson .args }}
          securityContext:
            runAsNonRoot: true
            runAsUser: 65534
            readOnlyRootFilesystem: true
            allowPrivilegeEscalation: false
            capabilities: {drop: [ALL]}
            seccompProfile: {type: RuntimeDefault}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ quote $namespace }}
  labels:
    {{- $labels }}
  annotations:
    {{- include "gpucdi.hook" (list .when 0) | nindent 4 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}
  labels:
    {{- $labels }}
  annotations:
    {{- include "gpucdi.hook" (list .when 0) | nindent 4 }}
rules:
  {{- toYaml .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels:
    {{- $labels }}
  annotations:
    {{- include "gpucdi.hook" (list .when 0) | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ $name }}}
subjects:
  - {kind: ServiceAccount, name: {{ $name }}, namespace: {{ quote $namespace }}}
{{- if include "gpucdi.openshift" .root }}
---
# By default, OpenShift accepts only user IDs in the namespace's range.
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}-scc
  namespace: {{ quote $namespace }}
  labels:
    {{- $labels }}
  annotations:
    {{- include "gpucdi.hook" (list .when 0) | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:openshift:scc:nonroot-v2"}
subjects:
  - {kind: ServiceAccount, name: {{ $name }}, namespace: {{ quote $namespace }}}
{{- end }}
{{- end }}

{{- /* Annotations of a Helm hook. Parameters: its event, such as "pre-delete", and its weight. */ -}}
{{- define "gpucdi.hook" -}}
helm.sh/hook: {{ index . 0 }}
helm.sh/hook-weight: {{ index . 1 | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- /* The endpoint of a PodMonitor or ServiceMonitor, given its interval. */ -}}
{{- define "gpucdi.endpoint" -}}
- port: metrics
  interval: {{ . }}
  # Keeps the labels namespace, pod and container of the metrics, which name the pods that hold GPUs.
  honorLabels: true
  relabelings:
    # Identify series by node, since pods of the agent are replaced.
    - {sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: instance}
{{- end }}
