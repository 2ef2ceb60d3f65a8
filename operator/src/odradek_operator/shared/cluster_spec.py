"""A KafkaCluster as the API server admitted it, read into frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from odradek import config_loading, properties, security_settings
from odradek.config import BrokerConfig
from odradek.dynamic_config import DYNAMIC_KEYS
from odradek_operator.shared import console_spec, expose_spec, listener_spec
from odradek_operator.shared.broker_sets import BrokerSets
from odradek_operator.shared.connect_strings import connect_string
from odradek_operator.shared.console_spec import ConsoleSpec
from odradek_operator.shared.expose_spec import ExposeSpec
from odradek_operator.shared.listener_spec import AuthorizationSpec, ListenerSpec
from odradek_operator.shared.spec import Body, InvalidSpec

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
    plain text on `port`, without `image` brokers have the operator's. Brokers ignore the settings
    `unknown_keys`: they do not know or do not support them.
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
    def first_ports(self) -> tuple[int, ...]:
        """The ports of the first of several brokers on a node."""
        of_clients = tuple(one.port for one in self.listeners) or (self.port,)
        return (*of_clients, self.metrics_port)

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

    @property
    def deletes_topics(self) -> bool:
        """Return whether the controller of these brokers carries out deletions of topics."""
        return self.config.get("delete.topic.enable", "true").strip().lower() != "false"

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


def read_without_faults(body: Body) -> ClusterSpec | None:
    """Read a KafkaCluster whose spec is invalid: where its znodes are stays known.

    None: that is what is wrong with it.
    """
    try:
        return parse_cluster(_without_faults(body))
    except InvalidSpec:
        return None


def _without_faults(body: Body) -> Body:
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
    host_network, metrics_port = brokers.get("hostNetwork", True), brokers.get("metricsPort", 9404)
    ports = {f"listener {one.name}": one.port for one in listeners} | {"metrics": metrics_port}
    if host_network and (cut_off := expose_spec.why_cut_off(exposed, ports, per_node)):
        raise InvalidSpec("InvalidExpose", cut_off)
    return ClusterSpec(
        zookeeper=zookeeper,
        replicas=brokers["replicas"],
        host_network=host_network,
        port=brokers.get("port", 9092),
        metrics_port=metrics_port,
        storage=Storage(
            size=storage.get("size", "10Gi"),
            storage_class=storage.get("storageClassName"),
            delete_claims=storage.get("deleteClaims", False),
        ),
        config=config,
        default_partitions=int(config.get("num.partitions", "1")),
        default_replication_factor=int(config.get("default.replication.factor", "1")),
        unknown_keys=tuple(config_loading.ignored_keys(config)),
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
    if refused := security_settings.unsupported(config):
        raise InvalidSpec(
            "InvalidConfig",
            f"brokers do not support these security settings; remove {', '.join(refused)}",
        )
    # The operator writes these itself, with the keys and certificates that they name.
    if refused := security_settings.asked_for(config):
        raise InvalidSpec(
            "InvalidConfig",
            f"spec.listeners is where TLS and authentication are asked for; remove "
            f"{', '.join(refused)}",
        )
    try:
        read_config(config, zookeeper)
    except properties.ConfigError as error:
        raise InvalidSpec("InvalidConfig", str(error)) from None


def read_config(config: Mapping[str, str], zookeeper: str) -> BrokerConfig:
    """Read settings as a broker with them does. Raises ConfigError."""
    settings, _ = config_loading.from_values(
        {**config, "broker.id": "0", "zookeeper.connect": zookeeper, "log.dirs": "/data"}
    )
    return settings


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
