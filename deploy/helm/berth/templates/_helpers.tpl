{{- define "berth.image" -}}
{{ .Values.image.repository }}
{{- with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "berth.berthd.yaml" -}}
{{- $kubernetes := .Values.config.kubernetes | default dict -}}
{{- if .Values.pools.enabled }}{{ $kubernetes = merge (dict "addresses" "pools") $kubernetes }}{{ end -}}
{{- if .Values.networks.enabled }}{{ $kubernetes = merge (dict "networks" true) $kubernetes }}{{ end -}}
{{- $masquerade := .Values.config.masquerade | default dict -}}
{{- if .Values.ipMasqAgent.configMap }}{{ $masquerade = merge (dict "ipMasqAgentFile" "/etc/ip-masq-agent/config") $masquerade }}{{ end -}}
{{- $config := merge (dict "kubernetes" $kubernetes) .Values.config -}}
{{- if $masquerade }}{{ $config = merge (dict "masquerade" $masquerade) $config }}{{ end -}}
{{ $config | toYaml }}
{{- end }}
