{{/* Names are cut at 53 characters, so that suffixes still fit into a label value of 63. */}}
{{- define "odradek.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "odradek.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- else if contains (include "odradek.name" .) .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "odradek.name" .) | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Cluster-scoped objects carry the release's namespace, so that two releases do not collide. */}}
{{- define "odradek.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "odradek.fullname" .) -}}
{{- end -}}

{{- define "odradek.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: odradek
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pod templates: without versions, because a changed label restarts the pod. */}}
{{- define "odradek.podLabels" -}}
app.kubernetes.io/part-of: odradek
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "odradek.operator.selector" -}}
app.kubernetes.io/name: {{ include "odradek.name" . }}-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* This suffix is longer than others: with 48 characters before it, names of Services and label values have 63. */}}
{{- define "odradek.historyServer.name" -}}
{{- printf "%s-history-server" (include "odradek.fullname" . | trunc 48 | trimSuffix "-") -}}
{{- end -}}

{{- define "odradek.historyServer.selector" -}}
app.kubernetes.io/name: {{ include "odradek.name" . | trunc 48 | trimSuffix "-" }}-history-server
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "odradek.zookeeper.selector" -}}
app.kubernetes.io/name: {{ include "odradek.name" . }}-zookeeper
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "odradek.operator.serviceAccount" -}}
{{- default (printf "%s-operator" (include "odradek.fullname" .)) .Values.operator.serviceAccount.name -}}
{{- end -}}

{{/* An image: by its digest if it has one, else by its tag, else by the appVersion. Argument: (dict "image" ... "root" $) */}}
{{- define "odradek.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/* Where the operator's pods may run, and those of its image that come and go. */}}
{{- define "odradek.operator.placement" -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $.Values.operator $key }}
{{ dict $key . | toYaml }}
{{- end }}
{{- end }}
{{- end -}}

{{/* What the operator is told of lag exporters: image, arguments, resources and placement. A JSON object. */}}
{{- define "odradek.exporter" -}}
{{- $values := .Values.exporter -}}
{{- $arguments := list (printf "--interval=%d" (int $values.intervalSeconds)) -}}
{{- range $key, $option := dict "groups" "groups" "excludeGroups" "exclude-groups" "topics" "topics" "excludeTopics" "exclude-topics" -}}
{{- with index $values $key -}}
{{- $_ := mustRegexMatch . "" -}}
{{- $arguments = append $arguments (printf "--%s=%s" $option .) -}}
{{- end -}}
{{- end -}}
{{- include "odradek.workload" (dict "values" $values "arguments" $arguments "root" .) -}}
{{- end -}}

{{/* The same of consoles. */}}
{{- define "odradek.console" -}}
{{- include "odradek.workload" (dict "values" .Values.console "arguments" list "root" .) -}}
{{- end -}}

{{/* What the operator is told of Deployments that it makes beside brokers. Arguments: values, arguments, root. */}}
{{- define "odradek.workload" -}}
{{- $pod := dict -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" -}}
{{- with index $.values $key -}}
{{- $_ := set $pod $key . -}}
{{- end -}}
{{- end -}}
{{- $image := include "odradek.image" (dict "image" .root.Values.image.operator "root" .root) -}}
{{- dict "image" $image "arguments" .arguments "resources" .values.resources "pod" $pod | toJson -}}
{{- end -}}

{{/* Where an alert's runbook is. Argument: (list $ NAME) */}}
{{- define "odradek.runbook" -}}
{{- printf "%s/%s.md" (trimSuffix "/" (index . 0).Values.monitoring.rules.runbookUrl) (index . 1) | quote -}}
{{- end -}}

{{- define "odradek.imagePullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* What the restricted pod security standard asks of a container. */}}
{{- define "odradek.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* What the operator does to namespaced objects, the same in a ClusterRole and in a Role. */}}
{{- define "odradek.operator.rules" -}}
# The five kinds: read them, keep finalizers and annotations, write status, and own what is made for them.
- apiGroups: [odradek.io]
  resources: [kafkaclusters, users, topics, reassignments, consumergroups]
  verbs: [get, list, watch, patch]
- apiGroups: [odradek.io]
  resources: [kafkaclusters/status, users/status, topics/status, reassignments/status, consumergroups/status]
  verbs: [patch]
- apiGroups: [odradek.io]
  resources: [kafkaclusters/finalizers, users/finalizers, topics/finalizers, reassignments/finalizers, consumergroups/finalizers]
  verbs: [update]
# Replicas of a Topic change through a Reassignment of its own; finished ones are deleted when their time is over. The job
# of its table is a ConsumerGroup of its own.
- apiGroups: [odradek.io]
  resources: [reassignments, consumergroups]
  verbs: [create, delete]
# Pods are deleted too: Spark drivers, and the brokers' in a rolling change. What is below goes with its owner.
# Nobody can give away what he may not do himself: drivers delete executors that are not needed any more all at once.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete, deletecollection]
- apiGroups: [""]
  resources: [configmaps, persistentvolumeclaims]
  verbs: [get, create, patch]
# Those of exposed listeners are deleted where a listener or a broker is not there any more.
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, create, patch, delete]
# Each job has an account of its own.
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get, create, patch]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, create, patch]
# Each User has a Secret, and may name another that has its password. Each job has one by which its pods know each other.
# Clusters with listeners have keys and passwords there. They are read by name; none are listed.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
# What cert-manager is asked for where a listener has an issuerRef.
- apiGroups: [cert-manager.io]
  resources: [certificates]
  verbs: [get, create, patch]
# What an executor may consist of (templates/admission/limit-jobs.yaml). Nobody serves these.
- apiGroups: [odradek.io]
  resources: [executors]
  verbs: [use]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, create, patch]
# Lag exporters and consoles; deleted where they are not wanted any more.
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create, patch]
# A Lease in each namespace with resources says which operator acts there, should two watch it.
# Creation cannot be restricted by name: the object has none yet when the request is judged.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [odradek-operator]
  verbs: [get, update]
# Events tell what happened, on the resource they happened to.
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}
