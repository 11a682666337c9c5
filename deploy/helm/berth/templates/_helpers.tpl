{{- define "berth.image" -}}
{{ .Values.image.repository }}
{{- with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "berth.berthd.yaml" -}}
{{- $kubernetes := .Values.config.kubernetes | default dict -}}
{{ merge (dict "kubernetes" $kubernetes) .Values.config | toYaml }}
{{- end }}
