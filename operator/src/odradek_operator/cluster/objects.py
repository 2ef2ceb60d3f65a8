"""The Kubernetes objects of a KafkaCluster: Service, ConfigMap, StatefulSet and budget. Pure.

The StatefulSet has strategy OnDelete: a changed template reaches a broker only when `cluster` says
that its pod may go. Where brokers share nodes, there are as many StatefulSets and ConfigMaps as a
node may have brokers (`broker_sets`); each set's ports are one higher than those of the set before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from odradek import stop_limits
from odradek.properties import property_line
from odradek_operator.cluster import (
    asked,
    listener_objects,
    listener_plan,
    zookeeper_objects,
    zookeeper_plan,
)
from odradek_operator.cluster.listener_objects import ListenerSetup
from odradek_operator.cluster.zookeeper_objects import ZooKeeperSetup
from odradek_operator.shared import pods
from odradek_operator.shared.broker_sets import SET_SIZE, BrokerSets, set_name
from odradek_operator.shared.cluster_spec import ClusterSpec, read_config
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
from odradek_operator.shared.spec import ResourceMeta

DATA_PATH: Final = "/var/lib/odradek"
CONFIG_PATH: Final = "/etc/odradek"
CONFIG_HASH: Final = "odradek.io/config-hash"
TEMPLATE_HASH: Final = "odradek.io/template-hash"
# Key of the ConfigMap: the racks of nodes.
RACKS: Final = "racks"
# Label of pods whose brokers share nodes: the number of their set.
SET_LABEL: Final = "odradek.io/broker-set"
# Annotation of the first StatefulSet: how many there are.
SETS: Final = "odradek.io/broker-sets"
# Of a pod's end: more than its broker takes, and a limit, which Kubernetes has in nanoseconds.
_SPARE_S: Final = 10
_LONGEST_GRACE_PERIOD_S: Final = 24 * 3600
_POD_NAME: Final = "statefulset.kubernetes.io/pod-name"

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


@dataclass(frozen=True, slots=True)
class Budget:
    """Which brokers a drained node may take away now.

    `most` of all but the pods `free`, and any of these.
    """

    most: int
    free: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Set:
    """One of the StatefulSets of a cluster. `shares` is whether there are more."""

    cluster: str
    number: int
    shares: bool

    @property
    def name(self) -> str:
        return set_name(self.cluster, self.number)

    @property
    def labels(self) -> dict[str, str]:
        """What the labels of its pods have besides those of all brokers."""
        return {SET_LABEL: str(self.number)} if self.shares else {}


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
    """Name of the first StatefulSet, its ConfigMap, and the PodDisruptionBudget."""
    return set_name(cluster, 0)


def pod_host(meta: ResourceMeta, pod: str) -> str:
    """Name of a broker's pod, which it advertises without the network of its node."""
    return f"{pod}.{service_name(meta.name)}.{meta.namespace}.svc"


def server_properties(
    spec: ClusterSpec,
    setup: ListenerSetup | None = None,
    zookeeper: ZooKeeperSetup | None = None,
    *,
    shares: bool = False,
) -> str:
    """The part of server.properties that all brokers of a set have; without `setup` in plain text.

    `shares` is whether a node may have several brokers.
    """
    own = {"listeners": f"PLAINTEXT://:{spec.port}"}
    if setup is not None:
        own = listener_objects.settings(setup)
    refused = listener_objects.REFUSED_IN_TOKENS
    if refused in own and refused in spec.config:
        # Users name more.
        own[refused] += f";{spec.config[refused]}"
    values = {
        **spec.config,
        **({"odradek.one.replica.per.node": "true"} if shares else {}),
        "zookeeper.connect": spec.zookeeper,
        **own,
        "log.dirs": f"{DATA_PATH}/data",
        "odradek.metrics.port": str(spec.metrics_port),
        **(zookeeper.settings if zookeeper is not None else {}),
    }
    return "".join(property_line(name, text) for name, text in sorted(values.items()))


def _static(spec: ClusterSpec) -> ClusterSpec:
    fixed = {name: text for name, text in spec.config.items() if name not in spec.dynamic}
    return replace(spec, config=fixed)


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
    live_sets: Sequence[Mapping[str, Any] | None],
    brokers: BrokerSets,
    budget: Budget,
    setup: ListenerSetup | None = None,
    zookeeper: ZooKeeperSetup | None = None,
) -> list[Object]:
    """Return every child object, in the order in which they are applied.

    `setup` are the listeners that brokers get now; None: one in plain text. `zookeeper` is with
    what they connect to ZooKeeper; None: as nobody, in plain text.

    `live_sets` are the StatefulSets as they are, None where there is none: their claim templates
    cannot change, so they are kept.
    """
    objects = [_service(meta, spec, setup, brokers)]
    for number, count in enumerate(brokers.counts):
        live = live_sets[number] if number < len(live_sets) else None
        if number and not count and live is None:
            continue
        one = _Set(meta.name, number, brokers.share_nodes)
        own, own_setup = _shifted(spec, setup, number)
        data = {
            "server.properties": server_properties(
                own, own_setup, zookeeper, shares=brokers.share_nodes
            ),
            RACKS: racks_file(racks),
        }
        if own_setup is not None:
            data |= listener_objects.files(own_setup)
        config_map = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(meta, one.name, labels(meta)),
            "data": data,
        }
        pod = _pod_spec(meta, own, one, image, pull_policy, pull_secrets, own_setup)
        request = asked.request_for(spec, live)
        notes = {
            **scrape_annotations(own.metrics_port),
            **spec.pod_annotations,
            # Without the settings that running brokers take (`settings`).
            CONFIG_HASH: digest(
                server_properties(_static(own), own_setup, zookeeper, shares=brokers.share_nodes)
            ),
            # Of all sets alike, so that it tells who runs with the listeners of now.
            **(setup.annotations() if setup is not None else {}),
            **(zookeeper.annotations() if zookeeper is not None else {}),
            **({asked.REQUEST: request} if request is not None else {}),
        }
        workload = _stateful_set(meta, spec, one, live, count, pod, notes, setup, zookeeper)
        workload["metadata"]["annotations"][asked.SPEC_HASH] = asked.spec_hash(
            spec, image, request, setup, zookeeper, shares=one.shares
        )
        workload["metadata"]["annotations"][asked.IMAGE] = image
        if one.number == 0 and one.shares:
            workload["metadata"]["annotations"][SETS] = str(len(brokers.counts))
        objects += [config_map, *([] if number else [_budget(meta, budget)]), workload]
    return objects


def _shifted(
    spec: ClusterSpec, setup: ListenerSetup | None, number: int
) -> tuple[ClusterSpec, ListenerSetup | None]:
    """Return the spec and the listeners with the ports of a set."""
    own = replace(spec, port=spec.port + number, metrics_port=spec.metrics_port + number)
    if setup is None:
        return own, None
    listeners = tuple(replace(one, port=one.port + number) for one in setup.plan.listeners)
    return own, replace(setup, plan=replace(setup.plan, listeners=listeners))


def _budget(meta: ResourceMeta, budget: Budget) -> Object:
    chosen: Object = {"matchLabels": selector(meta)}
    if budget.free:
        held = {"key": _POD_NAME, "operator": "NotIn", "values": sorted(budget.free)}
        chosen["matchExpressions"] = [held]
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(meta, workload_name(meta.name), labels(meta)),
        "spec": {
            "maxUnavailable": budget.most,
            # A pod that is not ready never blocks the drain of a node.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": chosen,
        },
    }


def _ports(spec: ClusterSpec, setup: ListenerSetup | None) -> list[tuple[str, int]]:
    of_listeners = [("kafka", spec.port)] if setup is None else listener_objects.ports(setup.plan)
    return [*of_listeners, ("metrics", spec.metrics_port)]


def _service(
    meta: ResourceMeta, spec: ClusterSpec, setup: ListenerSetup | None, brokers: BrokerSets
) -> Object:
    # Clients look its addresses up, and ask for the ports of the spec: the first set's. A node may
    # have brokers of another set only. That comes when all pods of the first one have the label.
    first = {SET_LABEL: "0"} if any(brokers.counts[1:]) else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(meta, service_name(meta.name), labels(meta)),
        "spec": {
            "clusterIP": "None",
            # A broker must find its peers, and be found, before it is ready.
            "publishNotReadyAddresses": True,
            "selector": {**selector(meta), **first},
            "ports": [
                {"name": name, "port": port, "targetPort": port}
                for name, port in _ports(spec, setup)
            ],
        },
    }


def _stateful_set(
    meta: ResourceMeta,
    spec: ClusterSpec,
    one: _Set,
    live: Mapping[str, Any] | None,
    replicas: int,
    pod: Object,
    pod_notes: Mapping[str, str],
    setup: ListenerSetup | None,
    zookeeper: ZooKeeperSetup | None,
) -> Object:
    claims = live["spec"]["volumeClaimTemplates"] if live else [_claim_template(meta, spec)]
    kept = "Delete" if spec.storage.delete_claims else "Retain"
    if zookeeper is not None:
        _add_zookeeper(pod, zookeeper)
    template = {
        "metadata": {
            "labels": {**spec.pod_labels, **labels(meta), **one.labels},
            "annotations": dict(pod_notes),
        },
        "spec": pod,
    }
    # The live template may hold removed fields and additions of others, so templates are compared
    # by the hash of what was last applied.
    notes = {TEMPLATE_HASH: digest(template)}
    if setup is not None:
        notes[listener_plan.ANNOTATION] = listener_plan.encode(setup.plan)
    if zookeeper is not None:
        notes[zookeeper_plan.ANNOTATION] = zookeeper_plan.encode(zookeeper.plan)
    about = {**metadata(meta, one.name, labels(meta)), "annotations": notes}
    own = one.labels if one.number else {}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": about,
        "spec": {
            "replicas": replicas,
            **({"ordinals": {"start": one.number * SET_SIZE}} if one.number else {}),
            "serviceName": service_name(meta.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": kept, "whenScaled": "Retain"},
            # That of the first set cannot change, and has those pods only that are named after it.
            "selector": {"matchLabels": {**selector(meta), **own}},
            "volumeClaimTemplates": claims,
            "template": template,
        },
    }


def _add_zookeeper(pod: Object, zookeeper: ZooKeeperSetup) -> None:
    (container,) = pod["containers"]
    container["env"] += zookeeper_objects.environment(zookeeper)
    container["volumeMounts"].append(zookeeper_objects.mount())
    pod["volumes"].append(zookeeper_objects.volume(zookeeper.secret))


def claim_name(pod: str) -> str:
    """Name of the volume claim of a broker's pod, as its StatefulSet makes it."""
    return f"data-{pod}"


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


def _grace_period_s(spec: ClusterSpec) -> int:
    """Return more than a broker may take to stop, 30 s with the defaults."""
    stop_s = stop_limits.stop_s(read_config(spec.config, spec.zookeeper))
    return math.ceil(min(stop_s + _SPARE_S, _LONGEST_GRACE_PERIOD_S))


def _pod_spec(
    meta: ResourceMeta,
    spec: ClusterSpec,
    one: _Set,
    image: str,
    pull_policy: str,
    pull_secrets: Sequence[str],
    setup: ListenerSetup | None,
) -> Object:
    pod: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _grace_period_s(spec),
        "affinity": _affinity(meta, spec, one),
        "securityContext": pod_security(),
        "containers": [_container(meta, spec, image, pull_policy, setup)],
        "volumes": [
            {"name": "config", "configMap": {"name": one.name}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    if setup is not None:
        pod["volumes"].append(listener_objects.volume(setup))
    if pull_secrets:
        pod["imagePullSecrets"] = [{"name": each} for each in pull_secrets]
    if spec.host_network:
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if spec.node_selector:
        pod["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        pod["tolerations"] = [dict(each) for each in spec.tolerations]
    if spec.priority_class:
        pod["priorityClassName"] = spec.priority_class
    if spec.spread:
        counted = {"labelSelector": {"matchLabels": selector(meta)}}
        pod["topologySpreadConstraints"] = [{**counted, **each} for each in spec.spread]
    return pod


def _affinity(meta: ResourceMeta, spec: ClusterSpec, one: _Set) -> Object:
    """Return the affinity of the spec, and that no two brokers of a set share a node."""
    apart = {
        "labelSelector": {"matchLabels": {**selector(meta), **one.labels}},
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
        "name": pods.BROKER,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": ["sh", "-c", start],
        "env": [
            field_env("POD_NAME", "metadata.name"),
            field_env("NODE_NAME", "spec.nodeName"),
            advertised,
            *map(dict, spec.env),
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
