{{/* The name of everything; one operator serves a hub, so it is always the same. */}}
{{- define "operator.name" -}}
modelplane-operator
{{- end }}

{{/* What the pods are found by. */}}
{{- define "operator.selector" -}}
app.kubernetes.io/name: {{ include "operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* What the pods of the key service are found by. */}}
{{- define "operator.keys" -}}
app.kubernetes.io/name: modelplane-keys
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "operator.labels" -}}
{{ include "operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "operator.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* The namespaces of tenants, as a list; empty: all of the hub. */}}
{{- define "operator.tenants" -}}
{{- if kindIs "slice" .Values.tenantNamespaces -}}
{{- if not .Values.tenantNamespaces }}{{ fail "tenantNamespaces is an empty list: say all, or name them" }}{{ end -}}
{{- range .Values.tenantNamespaces }}{{ if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$" (toString .)) }}{{ fail (printf "tenantNamespaces: %v is no namespace's name" .) }}{{ end }}{{ end -}}
{{- toJson (sortAlpha (uniq .Values.tenantNamespaces)) -}}
{{- else if eq (toString .Values.tenantNamespaces) "all" -}}
[]
{{- else -}}
{{- fail "tenantNamespaces is all, or a list of namespaces" -}}
{{- end -}}
{{- end }}

{{/*
Bindings that give an account a ClusterRole where tenants are: everywhere, or in each of their namespaces and in others.
Called with (list $ ROLE ACCOUNT NAMESPACE OTHERS).
*/}}
{{- define "operator.inTenants" -}}
{{- $root := index . 0 }}{{ $role := index . 1 }}{{ $account := index . 2 }}{{ $home := index . 3 }}
{{- $tenants := include "operator.tenants" $root | fromJsonArray }}
{{- range $namespace := empty $tenants | ternary (list "") (concat (index . 4) $tenants | uniq) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ empty $namespace | ternary "ClusterRoleBinding" "RoleBinding" }}
metadata:
  name: {{ $role }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "operator.labels" $root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $role }}
subjects:
  - kind: ServiceAccount
    name: {{ $account }}
    namespace: {{ $home }}
{{- end }}
{{- end }}
