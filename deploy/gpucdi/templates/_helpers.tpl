{{- define "gpucdi.labels" -}}
app.kubernetes.io/name: gpucdi
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* The pod selector, which is immutable. */ -}}
{{- define "gpucdi.selector" -}}
{app.kubernetes.io/name: gpucdi, app.kubernetes.io/instance: {{ .Release.Name }}}
{{- end }}

{{- /* "true" if labels.place has the given value for any node. */ -}}
{{- define "gpucdi.labelsAt" -}}
{{- $place := .place -}}
{{- $used := eq $place (dig "labels" "place" "node" .config) -}}
{{- range .config.nodes }}{{ if eq $place (dig "labels" "place" "" .) }}{{ $used = true }}{{ end }}{{ end -}}
{{- if $used }}true{{ end -}}
{{- end }}

{{- /* "true" if a section of the config selects nodes by label. */ -}}
{{- define "gpucdi.byLabel" -}}
{{- $found := false -}}
{{- range .Values.config.nodes }}{{ if or .section .selector }}{{ $found = true }}{{ end }}{{ end -}}
{{- if $found }}true{{ end -}}
{{- end }}

{{- define "gpucdi.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Annotations of a post-delete hook with the given weight. */ -}}
{{- define "gpucdi.hook" -}}
helm.sh/hook: post-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
