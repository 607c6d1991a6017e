{{/* The operator's account on the hub. */}}
{{- define "operator.account" -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) }}{{ fail "serviceAccount.name is missing: with serviceAccount.create=false the account is yours" }}{{ end -}}
{{ .Values.serviceAccount.name | default "modelplane-operator" }}
{{- end }}

{{/* The same, as API servers name whoever asks. */}}
{{- define "operator.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "operator.account" . }}
{{- end }}

{{/* Whether a pod of its own installs the hub gateway, by an account of its own; empty where it is yours. */}}
{{- define "operator.gatewayApart" -}}
{{ or .Values.hubGateway.traefik .Values.hubGateway.envoyGateway | ternary "true" "" }}
{{- end }}

{{/* The account that reconciles InferenceGateways. */}}
{{- define "operator.gatewayAccount" -}}
{{ include "operator.gatewayApart" . | empty | ternary (include "operator.account" .) "modelplane-operator-hub-gateway" }}
{{- end }}

{{/* The same, as API servers name whoever asks. */}}
{{- define "operator.gatewayUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "operator.gatewayAccount" . }}
{{- end }}

{{/* Both of them, as a list. */}}
{{- define "operator.users" -}}
{{ list (include "operator.user" .) (include "operator.gatewayUser" .) | uniq | toJson }}
{{- end }}

{{/* What the pods are found by. */}}
{{- define "operator.selector" -}}
app.kubernetes.io/name: modelplane-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* What the pod that installs the hub gateway is found by. */}}
{{- define "operator.gateway" -}}
app.kubernetes.io/name: modelplane-hub-gateway
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
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
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
{{- if has "all" .Values.tenantNamespaces }}{{ fail "tenantNamespaces: say all without a list, or name namespaces in one" }}{{ end -}}
{{- if not .Values.tenantNamespaces }}{{ fail "tenantNamespaces is an empty list: say all, or name them" }}{{ end -}}
{{- range .Values.tenantNamespaces }}{{ if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$" (toString .)) }}{{ fail (printf "tenantNamespaces: %v is no namespace's name" .) }}{{ end }}{{ end -}}
{{- toJson (sortAlpha (uniq .Values.tenantNamespaces)) -}}
{{- else if eq (toString .Values.tenantNamespaces) "all" -}}
[]
{{- else -}}
{{- fail "tenantNamespaces is missing: a list of the namespaces that models are in, or all, which lets the operator read every Secret of the hub whose name it knows (docs/permissions.md)" -}}
[]
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

{{/* The affinity of the values, or different nodes and zones where possible. Called with (list $ SELECTOR). */}}
{{- define "operator.spread" -}}
{{- $root := index . 0 }}{{ $selector := index . 1 }}
affinity:
{{- if $root.Values.affinity }}
  {{- toYaml $root.Values.affinity | nindent 2 }}
{{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      {{- range $key, $weight := dict "kubernetes.io/hostname" 100 "topology.kubernetes.io/zone" 50 }}
      - weight: {{ $weight }}
        podAffinityTerm:
          topologyKey: {{ $key }}
          labelSelector:
            matchLabels:
              {{- include $selector $root | nindent 14 }}
      {{- end }}
{{- end }}
{{- end }}

{{- /* What deletes a namespace, what deletes children with their owner or frees them of it, and what stores anew. */}}
{{- define "operator.notKubernetes" -}}
!(request.userInfo.username in ["system:kube-controller-manager",
        "system:serviceaccount:kube-system:generic-garbage-collector",
        "system:serviceaccount:kube-system:namespace-controller",
        "system:serviceaccount:kube-system:storage-version-migrator-controller"])
{{- end }}

{{/* Of a program that reconciles: what its container is beside its arguments, ports and resources. */}}
{{- define "operator.program" -}}
image: {{ include "operator.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  - name: HOME
    value: /tmp
  - name: MODELPLANE_CRASH_RECORD
    value: /tmp/crash-record
  {{- with .Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
startupProbe:
  httpGet:
    path: /healthz
    port: http
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet:
    path: /healthz
    port: http
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet:
    path: /readyz
    port: http
  periodSeconds: 5
  timeoutSeconds: 5
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop:
      - ALL
volumeMounts:
  - name: tmp
    mountPath: /tmp
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The same of its pod. */}}
{{- define "operator.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
volumes:
  - name: tmp
    emptyDir:
      sizeLimit: 256Mi
  {{- with .Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
