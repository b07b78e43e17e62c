{{- define "headgate.labels" -}}
app.kubernetes.io/name: headgate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "headgate.selector" -}}
app.kubernetes.io/name: headgate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "headgate.account" -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- end }}

{{- define "headgate.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "headgate.dagsterImage" -}}
{{ .Values.dagster.image.repository }}:{{ .Values.dagster.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The store and its credentials, as environment of a container. */}}
{{- define "headgate.store" -}}
env:
  - {name: HEADGATE_STORE, value: {{ .Values.store.url | quote }}}
{{- range $name, $value := .Values.store.env }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- define "headgate.secret" -}}
{{- with .Values.store.secret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}

{{/* No root, no capabilities, nothing to write to but /tmp. */}}
{{- define "headgate.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "headgate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The Secret with the brokers' certificate; empty: no TLS. */}}
{{- define "headgate.tlsSecret" -}}
{{- if .Values.tls.secret }}{{ .Values.tls.secret }}{{ else if .Values.tls.issuer }}{{ .Release.Name }}-tls{{ end }}
{{- end }}

{{/* The Secret with the certificate that KEDA shows; empty: none. */}}
{{- define "headgate.kedaSecret" -}}
{{- if .Values.keda.clientSecret }}{{ .Values.keda.clientSecret }}{{ else if .Values.tls.issuer }}{{ .Release.Name }}-keda{{ end }}
{{- end }}

{{/* "true" where gRPC asks for a login, so that KEDA needs a certificate. */}}
{{- define "headgate.logins" -}}
{{- if and (include "headgate.tlsSecret" .) (or (eq .Values.access.authorization "acl") (eq .Values.tls.kafkaProtocol "sasl_ssl") (eq .Values.tls.clientAuth "required")) }}true{{ end }}
{{- end }}

{{/* Where code locations find the brokers. */}}
{{- define "headgate.cluster" -}}
{{- $address := printf "%s.%s.svc:9095" .Release.Name .Release.Namespace }}
{{- if .Values.dagster.cluster }}{{ .Values.dagster.cluster }}
{{- else if include "headgate.tlsSecret" . }}tls://{{ $address }}?ca=/etc/headgate-tls/ca.crt
{{- else }}{{ $address }}{{ end }}
{{- end }}
