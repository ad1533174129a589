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
The operator's image may be pulled, and the program may do nothing but talk to the API server.
*/}}
{{- define "evenkeel.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
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
