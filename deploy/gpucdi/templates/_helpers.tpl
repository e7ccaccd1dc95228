{{- define "gpucdi.labels" -}}
app.kubernetes.io/name: gpucdi
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* What pods are selected by: it can never change. */ -}}
{{- define "gpucdi.selector" -}}
{app.kubernetes.io/name: gpucdi, app.kubernetes.io/instance: {{ .Release.Name }}}
{{- end }}

{{- /* Whether labels go to a place on some node. */ -}}
{{- define "gpucdi.labelsAt" -}}
{{- $place := .place -}}
{{- $here := eq $place (dig "labels" "place" "node" .config) -}}
{{- range .config.nodes }}{{ if eq $place (dig "labels" "place" "" .) }}{{ $here = true }}{{ end }}{{ end -}}
{{- if $here }}true{{ end -}}
{{- end }}

{{- /* Whether a section of the config holds by a label. */ -}}
{{- define "gpucdi.byLabel" -}}
{{- $by := false -}}
{{- range .Values.config.nodes }}{{ if or .section .selector }}{{ $by = true }}{{ end }}{{ end -}}
{{- if $by }}true{{ end -}}
{{- end }}

{{- define "gpucdi.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Of an object that is there while helm uninstalls; the number is its turn. */ -}}
{{- define "gpucdi.hook" -}}
helm.sh/hook: post-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
