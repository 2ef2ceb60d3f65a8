"""The Kubernetes objects of a KafkaCluster: Service, ConfigMap, StatefulSet and budget. Pure.

The StatefulSet has strategy OnDelete: a changed template reaches a broker only when `cluster` says
that its pod may go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from odradek_operator.cluster import (
    listener_objects,
    listener_plan,
    zookeeper_objects,
    zookeeper_plan,
)
from odradek_operator.cluster.listener_objects import ListenerSetup
from odradek_operator.cluster.zookeeper_objects import ZooKeeperSetup
from odradek_operator.shared.objects import (
    CLUSTER_LABEL,
    MANAGED_BY,
    Object,
    container_security,
    digest,
    field_env,
    metadata,
    pod_security,
    scrape_annotations,
)
from odradek_operator.shared.spec import ClusterSpec, ResourceMeta

DATA_PATH: Final = "/var/lib/odradek"
CONFIG_PATH: Final = "/etc/odradek"
CONFIG_HASH: Final = "odradek.io/config-hash"
TEMPLATE_HASH: Final = "odradek.io/template-hash"

# Ids come from the pod's ordinal, the address from where it runs, the rack from its node. An IPv6
# address stands in brackets in a listener.
_START: Final = """\
case "$ADVERTISED_HOST" in *:*) ADVERTISED_HOST="[$ADVERTISED_HOST]" ;; esac
rack=$(sed -n "s|^$NODE_NAME=||p" {config}/racks | head -n 1)
set -- --override "broker.id=${{POD_NAME##*-}}" \\
  --override "advertised.listeners=PLAINTEXT://$ADVERTISED_HOST:{port}"
[ -z "$rack" ] || set -- "$@" --override "broker.rack=$rack"
exec odradek broker {config}/server.properties "$@"
"""


def labels(meta: ResourceMeta) -> dict[str, str]:
    """Labels of everything that belongs to a cluster."""
    return {
        "app.kubernetes.io/name": "odradek",
        "app.kubernetes.io/instance": meta.name,
        "app.kubernetes.io/component": "broker",
        "app.kubernetes.io/managed-by": MANAGED_BY,
        CLUSTER_LABEL: meta.name,
    }


def selector(meta: ResourceMeta) -> dict[str, str]:
    """Labels that select a cluster's broker pods."""
    return {"app.kubernetes.io/component": "broker", CLUSTER_LABEL: meta.name}


def selector_text(meta: ResourceMeta) -> str:
    """The selector as text, for lists and for the scale subresource."""
    return ",".join(f"{key}={value}" for key, value in sorted(selector(meta).items()))


def service_name(cluster: str) -> str:
    """Name of the headless Service of the brokers."""
    return f"{cluster}-brokers"


def workload_name(cluster: str) -> str:
    """Name of StatefulSet, ConfigMap and PodDisruptionBudget."""
    return f"{cluster}-broker"


def pod_host(meta: ResourceMeta, pod: str) -> str:
    """Name of a broker's pod, which it advertises without the network of its node."""
    return f"{pod}.{service_name(meta.name)}.{meta.namespace}.svc"


def server_properties(
    spec: ClusterSpec,
    setup: ListenerSetup | None = None,
    zookeeper: ZooKeeperSetup | None = None,
) -> str:
    """The part of server.properties that all brokers share; without `setup` in plain text."""
    plain = {"listeners": f"PLAINTEXT://:{spec.port}"}
    values = {
        **spec.config,
        "zookeeper.connect": spec.zookeeper,
        **(plain if setup is None else listener_objects.settings(setup)),
        "log.dirs": f"{DATA_PATH}/data",
        "odradek.metrics.port": str(spec.metrics_port),
        **(zookeeper.settings if zookeeper is not None else {}),
    }
    return "".join(f"{name}={_escape(text)}\n" for name, text in sorted(values.items()))


def _static(spec: ClusterSpec) -> ClusterSpec:
    fixed = {name: text for name, text in spec.config.items() if name not in spec.dynamic}
    return replace(spec, config=fixed)


def _escape(text: str) -> str:
    r"""A Java properties file takes \ for an escape and drops spaces in front."""
    escaped = text.replace("\\", "\\\\")
    return f"\\{escaped}" if escaped.startswith((" ", "\t")) else escaped


def racks_file(racks: Mapping[str, str]) -> str:
    """Lines of node=rack, which a broker reads when it starts."""
    return "".join(f"{node}={rack}\n" for node, rack in sorted(racks.items()))


def read_racks(text: str) -> dict[str, str]:
    """Read what `racks_file` wrote; other lines are skipped."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def desired_objects(
    meta: ResourceMeta,
    spec: ClusterSpec,
    image: str,
    pull_policy: str,
    pull_secrets: Sequence[str],
    racks: Mapping[str, str],
    live_set: Mapping[str, Any] | None,
    replicas: int,
    evictable: bool,
    setup: ListenerSetup | None = None,
    zookeeper: ZooKeeperSetup | None = None,
) -> list[Object]:
    """Return every child object, in the order in which they are applied.

    `setup` are the listeners that brokers get now; None: one in plain text. `zookeeper` is with
    what they connect to ZooKeeper; None: as nobody, in plain text.

    `live_set` is the StatefulSet as it is: its claim templates cannot change, so they are kept.
    `evictable` is whether a drained node may take a broker away now.
    """
    data = {
        "server.properties": server_properties(spec, setup, zookeeper),
        "racks": racks_file(racks),
    }
    if setup is not None:
        data |= listener_objects.files(setup)
    return [
        _service(meta, spec, setup),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(meta, workload_name(meta.name), labels(meta)),
            "data": data,
        },
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(meta, workload_name(meta.name), labels(meta)),
            "spec": {
                "maxUnavailable": 1 if evictable else 0,
                # A pod that is not ready never blocks the drain of a node.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
                "selector": {"matchLabels": selector(meta)},
            },
        },
        _stateful_set(
            meta, spec, image, pull_policy, pull_secrets, live_set, replicas, setup, zookeeper
        ),
    ]


def _ports(spec: ClusterSpec, setup: ListenerSetup | None) -> list[tuple[str, int]]:
    of_listeners = [("kafka", spec.port)] if setup is None else listener_objects.ports(setup.plan)
    return [*of_listeners, ("metrics", spec.metrics_port)]


def _service(meta: ResourceMeta, spec: ClusterSpec, setup: ListenerSetup | None) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(meta, service_name(meta.name), labels(meta)),
        "spec": {
            "clusterIP": "None",
            # A broker must find its peers, and be found, before it is ready.
            "publishNotReadyAddresses": True,
            "selector": selector(meta),
            "ports": [
                {"name": name, "port": port, "targetPort": port}
                for name, port in _ports(spec, setup)
            ],
        },
    }


def _stateful_set(
    meta: ResourceMeta,
    spec: ClusterSpec,
    image: str,
    pull_policy: str,
    pull_secrets: Sequence[str],
    live_set: Mapping[str, Any] | None,
    replicas: int,
    setup: ListenerSetup | None,
    zookeeper: ZooKeeperSetup | None,
) -> Object:
    name = workload_name(meta.name)
    claims = live_set["spec"]["volumeClaimTemplates"] if live_set else [_claim_template(meta, spec)]
    kept = "Delete" if spec.storage.delete_claims else "Retain"
    pod = _pod_spec(meta, spec, image, pull_policy, pull_secrets, setup)
    if zookeeper is not None:
        _add_zookeeper(pod, zookeeper)
    # The live template may hold removed fields and additions of others, so templates are compared
    # by the hash of what was last applied.
    notes = {TEMPLATE_HASH: digest(pod)}
    if setup is not None:
        notes[listener_plan.ANNOTATION] = listener_plan.encode(setup.plan)
    if zookeeper is not None:
        notes[zookeeper_plan.ANNOTATION] = zookeeper_plan.encode(zookeeper.plan)
    about = {**metadata(meta, name, labels(meta)), "annotations": notes}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": about,
        "spec": {
            "replicas": replicas,
            "serviceName": service_name(meta.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": kept, "whenScaled": "Retain"},
            "selector": {"matchLabels": selector(meta)},
            "volumeClaimTemplates": claims,
            "template": {
                "metadata": {
                    "labels": labels(meta),
                    "annotations": {
                        # Without the settings that running brokers take (`settings`).
                        CONFIG_HASH: digest(server_properties(_static(spec), setup, zookeeper)),
                        **(setup.annotations() if setup is not None else {}),
                        **(zookeeper.annotations() if zookeeper is not None else {}),
                        **scrape_annotations(spec.metrics_port),
                    },
                },
                "spec": pod,
            },
        },
    }


def _add_zookeeper(pod: Object, zookeeper: ZooKeeperSetup) -> None:
    (container,) = pod["containers"]
    container["env"] += zookeeper_objects.environment(zookeeper)
    container["volumeMounts"].append(zookeeper_objects.mount())
    pod["volumes"].append(zookeeper_objects.volume(zookeeper.secret))


def _claim_template(meta: ResourceMeta, spec: ClusterSpec) -> Object:
    claim: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "labels": selector(meta)},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": spec.storage.size}},
        },
    }
    if spec.storage.storage_class:
        claim["spec"]["storageClassName"] = spec.storage.storage_class
    return claim


def _pod_spec(
    meta: ResourceMeta,
    spec: ClusterSpec,
    image: str,
    pull_policy: str,
    pull_secrets: Sequence[str],
    setup: ListenerSetup | None,
) -> Object:
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        "affinity": _affinity(meta, spec),
        "securityContext": pod_security(),
        "containers": [_container(meta, spec, image, pull_policy, setup)],
        "volumes": [
            {"name": "config", "configMap": {"name": workload_name(meta.name)}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    if setup is not None:
        pod["volumes"].append(listener_objects.volume(setup))
    if pull_secrets:
        pod["imagePullSecrets"] = [{"name": one} for one in pull_secrets]
    if spec.host_network:
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if spec.node_selector:
        pod["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        pod["tolerations"] = [dict(one) for one in spec.tolerations]
    if spec.priority_class:
        pod["priorityClassName"] = spec.priority_class
    return pod


def _affinity(meta: ResourceMeta, spec: ClusterSpec) -> Object:
    """Return the affinity of the spec, and that no two brokers share a node."""
    apart = {
        "labelSelector": {"matchLabels": selector(meta)},
        "topologyKey": "kubernetes.io/hostname",
    }
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    wanted = spec.affinity.get("podAntiAffinity", {})
    terms = [apart, *wanted.get(required, ())]
    return {**spec.affinity, "podAntiAffinity": {**wanted, required: terms}}


def _container(
    meta: ResourceMeta,
    spec: ClusterSpec,
    image: str,
    pull_policy: str,
    setup: ListenerSetup | None,
) -> Object:
    if spec.host_network:
        advertised = field_env("ADVERTISED_HOST", "status.hostIP")
    else:
        advertised = {"name": "ADVERTISED_HOST", "value": pod_host(meta, "$(POD_NAME)")}
    if setup is None:
        start = _START.format(config=CONFIG_PATH, port=spec.port)
    else:
        start = listener_objects.start(setup, CONFIG_PATH)
    mounts = [
        {"name": "data", "mountPath": DATA_PATH},
        {"name": "config", "mountPath": CONFIG_PATH, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 (inside the container)
    ]
    return {
        "name": "broker",
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": ["sh", "-c", start],
        "env": [
            field_env("POD_NAME", "metadata.name"),
            field_env("NODE_NAME", "spec.nodeName"),
            advertised,
        ],
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in _ports(spec, setup)
        ],
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": "metrics"},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        # A broker answers this also while it recovers its logs. 90 s without an answer are longer
        # than a machine or its disk may pause.
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": "metrics"},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 9,
        },
        "resources": dict(spec.resources),
        "securityContext": container_security(),
        "volumeMounts": mounts if setup is None else [*mounts, listener_objects.mount()],
    }
