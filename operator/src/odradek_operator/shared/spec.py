"""What users ask for: custom resources as the API server admitted them, read into frozen values.

The CRD schemas refuse what a schema can refuse. `parse_*` here checks the rest, what depends on
Kafka's own keys, and raises `InvalidSpec` with the reason that the Ready condition then carries.
Nothing is written for an invalid resource, and it is not tried again until it changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import re2

from odradek import config_loading, properties, security_settings, topic_config
from odradek.dynamic_config import DYNAMIC_KEYS
from odradek.values import TopicPartition
from odradek.zk.consumers import TopicPattern
from odradek_operator.shared import console_spec, expose_spec, job_spec, listener_spec
from odradek_operator.shared.broker_sets import BrokerSets
from odradek_operator.shared.console_spec import ConsoleSpec
from odradek_operator.shared.expose_spec import ExposeSpec
from odradek_operator.shared.job_spec import JobSpec
from odradek_operator.shared.listener_spec import AuthorizationSpec, ListenerSpec

# How long a finalizer may hold a namespace that is being deleted.
TERMINATING_TIMEOUT: Final = timedelta(seconds=30)

# Reason of a job that cannot run as it is written.
INVALID_JOB: Final = "InvalidJob"

GROUP: Final = "odradek.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
FINALIZER: Final = "odradek.io/finalizer"

Body = Mapping[str, Any]

# The operator decides these itself; a value of the user's could only break the cluster.
OPERATOR_OWNED_KEYS: Final = frozenset(
    {
        "broker.id",
        "broker.id.generation.enable",
        "broker.rack",
        "listeners",
        "advertised.listeners",
        "advertised.host.name",
        "advertised.port",
        "host.name",
        "port",
        "log.dir",
        "log.dirs",
        "odradek.one.replica.per.node",
        "odradek.metrics.host",
        "odradek.metrics.port",
        "zookeeper.connect",
    }
)


MIN_INSYNC: Final = "min.insync.replicas"
OFFSETS_FACTOR: Final = "offsets.topic.replication.factor"
DEFAULT_OFFSETS_FACTOR: Final = 3
TRANSACTIONS_FACTOR: Final = "transaction.state.log.replication.factor"
DEFAULT_TRANSACTIONS_FACTOR: Final = 3
TRANSACTIONS_MIN_ISR: Final = "transaction.state.log.min.isr"
DEFAULT_TRANSACTIONS_MIN_ISR: Final = 2
# Without that many brokers topics are not created, and acks=all is refused.
_REPLICA_COUNTS: Final = (
    "default.replication.factor",
    MIN_INSYNC,
    OFFSETS_FACTOR,
    TRANSACTIONS_FACTOR,
    TRANSACTIONS_MIN_ISR,
)


class InvalidSpec(Exception):  # noqa: N818 (what is wrong is the spec, and users read the name)
    """A spec that cannot be executed: `reason` in CamelCase, and a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


@dataclass(frozen=True, slots=True)
class ResourceMeta:
    """Identity and life cycle of a resource; times are the API server's wall clock.

    `has_finalizer` is about this operator's own.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    generation: int
    created: datetime
    deleted: datetime | None
    has_finalizer: bool

    @property
    def deleting(self) -> bool:
        """Return whether the API server waits only for finalizers."""
        return self.deleted is not None


@dataclass(frozen=True, slots=True)
class Storage:
    """One volume per broker; `storage_class` None means the default class."""

    size: str
    storage_class: str | None
    delete_claims: bool


@dataclass(frozen=True, slots=True)
class ZooKeeperAuthentication:
    """Where the login for ZooKeeper is: names of Secrets beside the KafkaCluster.

    `clients_secret` is for lag exporters and jobs, which have no login without it.
    """

    secret: str
    clients_secret: str | None = None
    set_acl: bool = True


@dataclass(frozen=True, slots=True)
class AuthoritySpec:
    """For how long a CA is made, and how long before its end the next one is."""

    validity_days: int = 3650
    renewal_days: int = 60


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """When brokers restart besides for changes of the spec: once for each other `request_id`.

    `on_request` is whether they get the operator's image only then.
    """

    request_id: str | None = None
    on_request: bool = False


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A KafkaCluster as wanted.

    `zookeeper` is the connect string with the chroot, as Kafka writes it. The defaults are those of
    a topic that names no number of partitions or replicas. Without `listeners` there is one in
    plain text on `port`, without `image` brokers have the operator's.
    """

    zookeeper: str
    replicas: int
    host_network: bool
    port: int
    metrics_port: int
    storage: Storage
    config: Mapping[str, str]
    default_partitions: int
    default_replication_factor: int
    unknown_keys: tuple[str, ...]
    rack_key: str | None
    resources: Mapping[str, Any]
    node_selector: Mapping[str, str]
    affinity: Mapping[str, Any]
    tolerations: tuple[Mapping[str, Any], ...]
    priority_class: str | None
    paused: bool
    listeners: tuple[ListenerSpec, ...] = ()
    authorization: AuthorizationSpec | None = None
    console: ConsoleSpec | None = None
    exposed: tuple[ExposeSpec, ...] = ()
    zookeeper_authentication: ZooKeeperAuthentication | None = None
    cluster_ca: AuthoritySpec = AuthoritySpec()
    clients_ca: AuthoritySpec = AuthoritySpec()
    per_node: int = 1
    image: str | None = None
    rollout: RolloutSpec = RolloutSpec()
    pod_labels: Mapping[str, str] = field(default_factory=dict)
    pod_annotations: Mapping[str, str] = field(default_factory=dict)
    spread: tuple[Mapping[str, Any], ...] = ()
    env: tuple[Mapping[str, Any], ...] = ()

    @property
    def brokers(self) -> BrokerSets:
        """The brokers as wanted."""
        return BrokerSets.spread(self.replicas, self.per_node)

    @property
    def holds_upgrades(self) -> bool:
        """Return whether an upgrade of the operator alone restarts no broker."""
        return self.image is not None or self.rollout.on_request

    @property
    def fewest_nodes(self) -> int:
        """The number of nodes without which some broker has no place."""
        return self.brokers.counts[0]

    @property
    def dynamic(self) -> dict[str, str]:
        """Settings that brokers take while they run."""
        return {name: text for name, text in self.config.items() if name in DYNAMIC_KEYS}

    def larger_than(self, most: int) -> tuple[str, ...]:
        """Return the settings in the spec that ask for more replicas than a partition can have."""
        return tuple(
            name
            for name in _REPLICA_COUNTS
            if name in self.config and int(self.config[name]) > most
        )

    @property
    def lacks_coordinators(self) -> bool:
        """Return whether brokers of these settings cannot create `__consumer_offsets`.

        Its replication factor has a default, which is no mistake of the user's: a group may keep
        its offsets in ZooKeeper.
        """
        return OFFSETS_FACTOR not in self.config and self.fewest_nodes < DEFAULT_OFFSETS_FACTOR

    @property
    def lacks_transactions(self) -> bool:
        """Return whether brokers of these settings cannot create `__transaction_state`, or not
        write to it. The defaults are no mistake of the user's: few producers have transactions.
        """
        factor = int(self.config.get(TRANSACTIONS_FACTOR, DEFAULT_TRANSACTIONS_FACTOR))
        min_isr = int(self.config.get(TRANSACTIONS_MIN_ISR, DEFAULT_TRANSACTIONS_MIN_ISR))
        return not min_isr <= factor <= self.fewest_nodes


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A Topic as wanted. None for partitions and replication factor: the cluster's default.

    `table` is spec.table, None where its records land in none.
    """

    cluster: str
    topic: str
    partitions: int | None
    replication_factor: int | None
    assignment: Mapping[int, tuple[int, ...]]
    config: Mapping[str, str]
    unmanaged: frozenset[str]
    managed: bool
    adoption: str
    deletion_policy: str
    paused: bool
    table: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A ConsumerGroup as wanted. `cluster` is the name, with the namespace if that is another."""

    cluster: str
    group: str
    topics: tuple[str, ...]
    topic_pattern: str | None
    offset_store: str
    job: JobSpec | None
    max_lag: int | None
    max_lag_seconds: int | None
    deletion_policy: str
    reset: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ReassignmentSpec:
    """A Reassignment as wanted. `topics` None: all."""

    cluster: str
    mode: str
    moves: Mapping[TopicPartition, tuple[int, ...]]
    brokers: tuple[int, ...]
    replication_factor: int | None
    topics: frozenset[str] | None
    excluded: frozenset[str]
    throttle: int | None
    at_once: int
    manual: bool
    approved: str | None
    cancel: bool
    lifetime: timedelta | None


def connect_string(connect: str, chroot: str) -> str:
    """Return host:port[,host:port...][/chroot]."""
    return connect if chroot in ("", "/") else f"{connect}{chroot}"


def qualified(connect: str, namespace: str) -> str:
    """Return a connect string whose Services are those of a namespace, wherever it is read.

    A name without a dot is that of a Service beside the brokers, and would be another one
    elsewhere.
    """
    servers, slash, chroot = connect.partition("/")
    found = []
    for server in servers.split(","):
        host, colon, port = server.rpartition(":")
        if "." not in host and host != "localhost":
            host = f"{host}.{namespace}.svc"
        found.append(f"{host}{colon}{port}")
    return ",".join(found) + slash + chroot


def share_znodes(one: Body, other: Body) -> bool:
    """Return whether two KafkaClusters keep their state in the same znodes, by what they name.

    One Service has several names, and one ensemble several servers.
    """
    same_chroot = one["spec"]["zookeeper"].get("chroot", "/") == other["spec"]["zookeeper"].get(
        "chroot", "/"
    )
    return same_chroot and not _servers(one).isdisjoint(_servers(other))


def _servers(cluster: Body) -> frozenset[str]:
    connect = qualified(cluster["spec"]["zookeeper"]["connect"], cluster["metadata"]["namespace"])
    return frozenset(map(_server, connect.lower().split(",")))


def _server(text: str) -> str:
    """Return host:port, or of a Service, which may have a port for TLS, too, NAME.NAMESPACE.svc."""
    host = text.rpartition(":")[0]
    service, marker, _ = f"{host}.".partition(".svc.")
    if marker:
        return f"{service}.svc"
    return f"{host}.svc" if host.count(".") == 1 else text


def parse_time(text: str) -> datetime:
    """Read a time as the API server writes it (RFC 3339, UTC)."""
    return datetime.fromisoformat(text)


def parse_meta(body: Body) -> ResourceMeta:
    """Read the metadata of any resource."""
    meta = body["metadata"]
    deleted = meta.get("deletionTimestamp")
    return ResourceMeta(
        kind=body["kind"],
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta["uid"],
        generation=meta.get("generation", 0),
        created=datetime.fromisoformat(meta["creationTimestamp"]),
        deleted=datetime.fromisoformat(deleted) if deleted else None,
        has_finalizer=FINALIZER in meta.get("finalizers", ()),
    )


class ClusterKey(NamedTuple):
    """Which KafkaCluster."""

    namespace: str
    name: str


def cluster_of(body: Body) -> ClusterKey:
    """Return the KafkaCluster that a resource belongs to, or is."""
    meta = body["metadata"]
    if body["kind"] == "KafkaCluster":
        return ClusterKey(meta["namespace"], meta["name"])
    reference = body["spec"]["clusterRef"]
    return ClusterKey(reference.get("namespace", meta["namespace"]), reference["name"])


def shown(namespace: str, reference: Mapping[str, Any]) -> str:
    """Return a clusterRef as messages name it to resources of a namespace."""
    other, name = reference.get("namespace", namespace), reference["name"]
    return str(name) if other == namespace else f"{other}/{name}"


def may_refer(namespace: str, cluster: Body | None) -> bool:
    """Return whether ConsumerGroups of a namespace may name a KafkaCluster.

    A cluster that does not exist allows nobody elsewhere, so that it cannot be told from one that
    does not allow it.
    """
    if cluster is None:
        return False
    allowed = cluster["spec"].get("jobs", {}).get("allowedNamespaces", ())
    return namespace == cluster["metadata"]["namespace"] or not {"*", namespace}.isdisjoint(allowed)


def for_deletion(body: Body) -> Body:
    """Return a resource without what can be invalid in it and has no meaning for its deletion."""
    wanted = {name: value for name, value in body["spec"].items() if name not in _NOT_DELETED_BY}
    return {**body, "spec": wanted}


_NOT_DELETED_BY: Final = frozenset({"config", "replicaAssignment", "topicPattern", "reset", "job"})


def without_faults(body: Body) -> Body:
    """Return a KafkaCluster without what can be invalid in it: where its znodes are stays known."""
    wanted = body["spec"]
    brokers = {name: value for name, value in wanted["brokers"].items() if name != "config"}
    listeners = [
        {name: value for name, value in one.items() if name != "expose"}
        for one in wanted.get("listeners", ())
    ]
    return {**body, "spec": {**wanted, "brokers": brokers, "listeners": listeners}}


def parse_cluster(body: Body) -> ClusterSpec:
    """Read a KafkaCluster, raising InvalidSpec for configuration that brokers would refuse."""
    spec = body["spec"]
    brokers = spec["brokers"]
    storage = brokers.get("storage", {})
    config = dict(brokers.get("config", {}))
    zookeeper = connect_string(spec["zookeeper"]["connect"], spec["zookeeper"].get("chroot", "/"))
    listeners = listener_spec.parse_listeners(spec)
    authorization = listener_spec.parse_authorization(spec)
    _check_broker_config(config, zookeeper)
    if listeners and (refused := listener_spec.set_by_hand(config)):
        raise InvalidSpec(
            "InvalidConfig",
            f"spec.listeners and spec.authorization decide about {', '.join(refused)}",
        )
    exposed = expose_spec.parse(spec)
    per_node = brokers.get("perNode", 1)
    ids = BrokerSets.spread(brokers["replicas"], per_node)
    if impossible := expose_spec.why_impossible(exposed, max(ids) + 1):
        raise InvalidSpec("InvalidExpose", impossible)
    return ClusterSpec(
        zookeeper=zookeeper,
        replicas=brokers["replicas"],
        host_network=brokers.get("hostNetwork", True),
        port=brokers.get("port", 9092),
        metrics_port=brokers.get("metricsPort", 9404),
        storage=Storage(
            size=storage.get("size", "10Gi"),
            storage_class=storage.get("storageClassName"),
            delete_claims=storage.get("deleteClaims", False),
        ),
        config=config,
        default_partitions=int(config.get("num.partitions", "1")),
        default_replication_factor=int(config.get("default.replication.factor", "1")),
        unknown_keys=tuple(config_loading.unknown_keys(config)),
        rack_key=brokers.get("rackTopologyKey"),
        resources=brokers.get("resources", {}),
        node_selector=brokers.get("nodeSelector", {}),
        affinity=brokers.get("affinity", {}),
        tolerations=tuple(brokers.get("tolerations", ())),
        priority_class=brokers.get("priorityClassName"),
        paused=spec.get("paused", False),
        listeners=listeners,
        authorization=authorization,
        console=console_spec.parse(spec),
        exposed=exposed,
        zookeeper_authentication=_zookeeper_authentication(spec["zookeeper"]),
        cluster_ca=_authority(spec.get("clusterCa", {})),
        clients_ca=_authority(spec.get("clientsCa", {})),
        per_node=per_node,
        image=spec.get("image"),
        rollout=_rollout(spec.get("rollout", {})),
        pod_labels=brokers.get("podLabels", {}),
        pod_annotations=brokers.get("podAnnotations", {}),
        spread=tuple(brokers.get("topologySpreadConstraints", ())),
        env=tuple(brokers.get("env", ())),
    )


def _rollout(raw: Mapping[str, Any]) -> RolloutSpec:
    return RolloutSpec(raw.get("requestId"), raw.get("upgrades") == "OnRequest")


def _authority(raw: Mapping[str, Any]) -> AuthoritySpec:
    known = AuthoritySpec()
    return AuthoritySpec(
        raw.get("validityDays", known.validity_days), raw.get("renewalDays", known.renewal_days)
    )


def _zookeeper_authentication(zookeeper: Mapping[str, Any]) -> ZooKeeperAuthentication | None:
    found = zookeeper.get("authentication")
    if found is None:
        return None
    return ZooKeeperAuthentication(
        found["secretName"], found.get("clientsSecretName"), found.get("setAcl", True)
    )


def _check_broker_config(config: Mapping[str, str], zookeeper: str) -> None:
    owned = sorted(OPERATOR_OWNED_KEYS & set(config))
    if owned:
        raise InvalidSpec("InvalidConfig", f"the operator sets {', '.join(owned)} itself")
    for name, text in config.items():
        if not _can_be_read(name, text):
            raise InvalidSpec(
                "InvalidConfig",
                f"brokers would not read {name!r} as it is written: a name has no spaces, = and :, "
                "and does not begin with # or !; neither name nor value has a line break",
            )
    # The operator writes these itself, with the keys and certificates that they name.
    if refused := security_settings.asked_for(config):
        raise InvalidSpec(
            "InvalidConfig",
            f"spec.listeners is where TLS and authentication are asked for; remove "
            f"{', '.join(refused)}",
        )
    try:
        config_loading.from_values(
            {
                **config,
                "broker.id": "0",
                "zookeeper.connect": zookeeper,
                "log.dirs": "/data",
            }
        )
    except properties.ConfigError as error:
        raise InvalidSpec("InvalidConfig", str(error)) from None


def _can_be_read(name: str, text: str) -> bool:
    """Return whether brokers read a setting from their file as it is, and nothing besides."""
    try:
        return properties.load_properties(properties.property_line(name, text)) == {name: text}
    except properties.ConfigError:
        return False


def check_fits(spec: ClusterSpec, strangers: int = 0) -> None:
    """Raise InvalidSpec for configuration that so few brokers cannot carry out.

    `strangers` are Kafka brokers in the same znodes.
    """
    most = spec.fewest_nodes + strangers
    if found := spec.larger_than(most):
        shown = " and ".join(f"{name} {spec.config[name]}" for name in found)
        verb = "is" if len(found) == 1 else "are"
        whole = f"the number of brokers, {most}"
        if spec.per_node > 1:
            whole = f"{most}, the number of nodes that {spec.replicas} brokers are sure to have"
        raise InvalidSpec("InvalidConfig", f"{shown} {verb} larger than {whole}")


def topic_name(body: Body) -> str:
    """Return the topic of a Topic, valid or not."""
    return str(body["spec"].get("topicName", body["metadata"]["name"]))


def parse_topic(body: Body) -> TopicSpec:
    """Read a Topic, raising InvalidSpec for an impossible configuration or assignment."""
    spec = body["spec"]
    config = dict(spec.get("config", {}))
    try:
        topic_config.check_topic_entries(config)
    except properties.ConfigError as error:
        raise InvalidSpec("InvalidConfig", str(error)) from None
    assignment = _parse_assignment(spec.get("replicaAssignment", {}))
    return TopicSpec(
        cluster=spec["clusterRef"]["name"],
        topic=topic_name(body),
        partitions=len(assignment) or spec.get("partitions"),
        replication_factor=spec.get("replicationFactor"),
        assignment=assignment,
        config=config,
        unmanaged=frozenset(spec.get("unmanagedConfig", ())),
        managed=spec.get("management", "Managed") == "Managed",
        adoption=spec.get("adoption", "IfMatching"),
        deletion_policy=spec.get("deletionPolicy", "Retain"),
        paused=spec.get("paused", False),
        table=spec.get("table"),
    )


def _parse_assignment(raw: Mapping[str, list[int]]) -> dict[int, tuple[int, ...]]:
    expected = {str(partition) for partition in range(len(raw))}
    if set(raw) != expected:
        wrong = ", ".join(sorted(set(raw) - expected))
        raise InvalidSpec(
            "InvalidReplicaAssignment",
            f"replicaAssignment must name partitions 0 to {len(raw) - 1}, and has {wrong}",
        )
    sizes = {len(replicas) for replicas in raw.values()}
    if len(sizes) > 1:
        raise InvalidSpec(
            "InvalidReplicaAssignment", "all partitions of a topic have the same number of replicas"
        )
    for partition, replicas in raw.items():
        if len(set(replicas)) != len(replicas):
            raise InvalidSpec(
                "InvalidReplicaAssignment", f"partition {partition} lists a broker twice"
            )
    return {int(partition): tuple(replicas) for partition, replicas in raw.items()}


def compile_pattern(text: str) -> TopicPattern:
    """Compile a topicPattern, raising InvalidSpec for one that is none.

    The syntax is RE2's, whose time grows with the length of a name only: a pattern that makes a
    backtracking engine run for ever would stop all that the operator does. The driver of a job and
    old consumers of its group read patterns as Python and Java do; what all take means the same.
    Lookarounds and backreferences, which RE2 does not have, are refused.
    """
    try:
        return compile_re2(text)
    except ValueError as error:
        raise InvalidSpec("InvalidTopicPattern", f"topicPattern: {error}") from None


def compile_re2(text: str) -> TopicPattern:
    """Compile a pattern of RE2. Raises ValueError for one that is none."""
    options = re2.Options()
    options.log_errors = False
    try:
        compiled: TopicPattern = re2.compile(text, options)
    except re2.error as error:
        (reason,) = error.args
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(shown) from None
    return compiled


def parse_group(body: Body) -> GroupSpec:
    """Read a ConsumerGroup, raising InvalidSpec for a bad pattern or job."""
    spec = body["spec"]
    pattern = spec.get("topicPattern")
    if pattern is not None:
        compile_pattern(pattern)
        if "job" in spec and "," in pattern:
            # Members find it in the znode of the driver, and a comma means "or" there.
            raise InvalidSpec(
                "InvalidTopicPattern",
                "topicPattern of a job cannot hold a comma: write a|b for either of two names, "
                "and x(x|xx)? for x{1,3}",
            )
    slo = spec.get("slo", {})
    return GroupSpec(
        cluster=shown(body["metadata"].get("namespace", ""), body["spec"]["clusterRef"]),
        group=spec.get("group", body["metadata"]["name"]),
        topics=tuple(spec.get("topics", ())),
        topic_pattern=pattern,
        offset_store=spec.get("offsetStore", "ZooKeeper"),
        job=_parse_job(spec["job"]) if "job" in spec else None,
        max_lag=slo.get("maxLag"),
        max_lag_seconds=slo.get("maxLagSeconds"),
        deletion_policy=spec.get("deletionPolicy", "Retain"),
        reset=dict(spec["reset"]) if "reset" in spec else None,
    )


def parse_reassignment(body: Body) -> ReassignmentSpec:
    """Read a Reassignment; the CRD's rules have refused everything that could be wrong in it."""
    spec = body["spec"]
    lifetime = spec.get("ttlSecondsAfterFinished")
    return ReassignmentSpec(
        cluster=spec["clusterRef"]["name"],
        mode=spec["mode"],
        moves={
            TopicPartition(one["topic"], one["partition"]): tuple(one["replicas"])
            for one in spec.get("moves", ())
        },
        brokers=tuple(spec.get("brokers", ())),
        replication_factor=spec.get("replicationFactor"),
        topics=frozenset(spec["topics"]) if "topics" in spec else None,
        excluded=frozenset(spec.get("excludedTopics", ())),
        throttle=spec.get("throttleBytesPerSec"),
        at_once=spec.get("maxConcurrentPartitions", 10),
        manual=spec.get("approval") == "Manual",
        approved=spec.get("approvedPlanHash"),
        cancel=spec.get("cancel", False),
        lifetime=timedelta(seconds=lifetime) if lifetime is not None else None,
    )


def _parse_job(job: Mapping[str, Any]) -> JobSpec:
    try:
        return job_spec.parse(job)
    except job_spec.InvalidJobError as error:
        raise InvalidSpec(INVALID_JOB, f"spec.job.{error}") from None
