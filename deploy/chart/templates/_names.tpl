{{/*
The labels of everything that the chart makes. Give a dict with `root` and `component`.
*/}}
{{- define "evenkeel.labels" -}}
{{ include "evenkeel.selector" . }}
app.kubernetes.io/part-of: evenkeel
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/*
The labels by which pods are selected; they never change.
*/}}
{{- define "evenkeel.selector" -}}
app.kubernetes.io/name: evenkeel-{{ .component }}
{{- end }}

{{/*
The image of a program. A digest says more than a tag: where there is one, it alone counts.
*/}}
{{- define "evenkeel.image" -}}
{{- $image := .root.Values.image -}}
{{- $registry := (.root.Values.global).imageRegistry | default $image.registry -}}
{{- $digest := index $image.digests .component -}}
{{ with $registry }}{{ . }}/{{ end }}evenkeel-{{ .component }}{{ if $digest }}@{{ $digest }}{{ else }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/*
The operator's image may be pulled, and the program may do nothing but talk to the API server. Who it runs as is said by its image,
and on OpenShift by the namespace: a number here would be outside the namespace's range.
*/}}
{{- define "evenkeel.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/*
Whether this is OpenShift, where pods need a security context constraint.
*/}}
{{- define "evenkeel.isOpenShift" -}}
{{- $enabled := (.Values.openshift).enabled | toString -}}
{{- if has $enabled (list "true" "false") -}}
{{ $enabled }}
{{- else -}}
{{ .Capabilities.APIVersions.Has "security.openshift.io/v1" }}
{{- end }}
{{- end }}

{{- define "evenkeel.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/*
Where the operator, and its uninstall, can always run: on a cluster that is all tainted or cordoned, too. It is the
operator that lifts the cordon of a drain.
*/}}
{{- define "evenkeel.tolerations" -}}
- {key: kubernetes.io/MetaReadiness, operator: Exists}
- {key: startup-taint.cluster-autoscaler.kubernetes.io/meta-readiness, operator: Exists}
- {key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}
- {key: node-role.kubernetes.io/master, operator: Exists, effect: NoSchedule}
- {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoSchedule}
- {key: node.kubernetes.io/network-unavailable, operator: Exists, effect: NoSchedule}
- {key: node.kubernetes.io/unschedulable, operator: Exists, effect: NoSchedule}
{{- end }}

{{/*
What makes an object part of the uninstall: made before it, removed after it.
*/}}
{{- define "evenkeel.uninstallHook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: "-10"
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/*
Every request there is, in a rule of a FlowSchema.
*/}}
{{- define "evenkeel.everyRequest" -}}
resourceRules:
- verbs: ["*"]
  apiGroups: ["*"]
  resources: ["*"]
  namespaces: ["*"]
  clusterScope: true
nonResourceRules:
- verbs: ["*"]
  nonResourceURLs: ["*"]
{{- end }}

{{/*
The name of the port that /metrics is at.
*/}}
{{- define "evenkeel.metricsPort" -}}
{{ ternary "metrics" "http" .Values.metrics.auth }}
{{- end }}

{{/*
How Prometheus reads /metrics, in an endpoint of a monitor. Give a dict with `root` and `tls`. A program that made its own
certificate made another one at its last start: that cannot be checked.
*/}}
{{- define "evenkeel.scrape" -}}
port: {{ include "evenkeel.metricsPort" .root }}
{{- if .root.Values.metrics.auth }}
scheme: https
tlsConfig: {{- toYaml (.tls | default (dict "insecureSkipVerify" true)) | nindent 2 }}
authorization:
  credentials: {name: evenkeel-monitoring-token, key: token}
{{- end }}
{{- end }}
