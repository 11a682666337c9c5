{{- define "berth.image" -}}
{{ .Values.image.repository }}
{{- with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "berth.berthd.yaml" -}}
{{- $kubernetes := .Values.config.kubernetes | default dict -}}
{{- if .Values.pools.enabled }}{{ $kubernetes = merge (dict "addresses" "pools") $kubernetes }}{{ end -}}
{{ merge (dict "kubernetes" $kubernetes) .Values.config | toYaml }}
{{- end }}
