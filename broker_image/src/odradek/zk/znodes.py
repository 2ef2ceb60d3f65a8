"""Paths and payloads of the cluster's znodes, as Apache Kafka writes them.

Each znode has a path function, `encode_*`, which returns the bytes that Kafka 2.1 would write, and
`decode_*(path, data)`, which reads what any version up to 2.8 writes and raises `ZnodeError` for
anything else. Nothing here connects to ZooKeeper, so the broker (asyncio), the operator and the
Spark job (plain kazoo) share the declarations. Znodes of consumer groups are in `consumers`, the
block of producer ids in `producer_ids`.

    /brokers/ids/N                           ephemeral  broker registration            row Z3
    /brokers/topics/T                                   replicas, and the topic's id   row Z1
    /brokers/topics/T/partitions/P/state                leader and in-sync replicas    row Z2
    /cluster/id                                         identity of the cluster
    /controller                              ephemeral  who is controller              row Z5
    /controller_epoch                                   how many controllers there were row Z4
    /config/{topics,brokers,clients,users}/NAME         overrides                      row Z11
    /config/changes/config_change_N          sequential changed override, for brokers  row Z11
    /admin/delete_topics[/T]                            topics to be deleted           row Z10
    /admin/reassign_partitions                          wanted replicas                row Z9
    /admin/preferred_replica_election                   partitions to be balanced      row Z9
    /isr_change_notification/isr_change_N    sequential leaders tell the controller
    /log_dir_event_notification/log_dir_event_N sequential a log.dir failed (KIP-112)
    /latest_producer_id_block                           producer ids handed out last
"""

import base64
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from odradek.values import (
    SECURITY_PROTOCOLS,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicPartition,
)
from odradek.zk.payload import (
    Fields,
    check_part,
    check_text,
    dump,
    fits_an_answer,
    parse_int32,
    parse_integer,
)
from odradek.zk.payload import ZnodeError as ZnodeError

BROKER_IDS_PATH = "/brokers/ids"
TOPICS_PATH = "/brokers/topics"
CLUSTER_ID_PATH = "/cluster/id"
CONTROLLER_PATH = "/controller"
CONTROLLER_EPOCH_PATH = "/controller_epoch"
CONFIG_PATH = "/config"
TOPIC_CONFIGS_PATH = "/config/topics"
BROKER_CONFIGS_PATH = "/config/brokers"
CONFIG_CHANGES_PATH = "/config/changes"
CONFIG_CHANGE_PREFIX = "config_change_"
DELETE_TOPICS_PATH = "/admin/delete_topics"
REASSIGN_PARTITIONS_PATH = "/admin/reassign_partitions"
PREFERRED_ELECTION_PATH = "/admin/preferred_replica_election"
ISR_CHANGES_PATH = "/isr_change_notification"
ISR_CHANGE_PREFIX = "isr_change_"
LOG_DIR_EVENTS_PATH = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX = "log_dir_event_"
PRODUCER_ID_BLOCK_PATH = "/latest_producer_id_block"

# A broker creates these when it starts, parents first, as Kafka does.
PERSISTENT_PATHS = (
    "/consumers",
    BROKER_IDS_PATH,
    TOPICS_PATH,
    CONFIG_CHANGES_PATH,
    DELETE_TOPICS_PATH,
    "/brokers/seqid",
    ISR_CHANGES_PATH,
    PRODUCER_ID_BLOCK_PATH,
    LOG_DIR_EVENTS_PATH,
    TOPIC_CONFIGS_PATH,
    "/config/clients",
    "/config/users",
    BROKER_CONFIGS_PATH,
)


def parse_sequence(name: str, prefix: str) -> int:
    """Return N of a sequential child `<prefix>N`, raising ZnodeError for any other name."""
    if not name.startswith(prefix):
        raise ZnodeError(name, f"does not begin with {prefix}")
    return parse_integer(name, name.removeprefix(prefix).encode())


# --- /brokers/ids/N ---------------------------------------------------------------------------

_BROKER_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_ENDPOINT = re.compile(r"([^:/]+)://\[?([0-9a-zA-Z\-._:%]*)\]?:(-?[0-9]+)")


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """Where one listener of a broker is reached.

    `listener` is its name, `security_protocol` one of SECURITY_PROTOCOLS.
    """

    listener: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """The registration of a broker; `timestamp_ms` is its wall-clock time."""

    broker_id: BrokerId
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None = None
    timestamp_ms: int = 0
    jmx_port: int = -1

    def endpoint(self, listener: str) -> BrokerEndpoint | None:
        """Return the endpoint of the listener with this name, or None."""
        return next((found for found in self.endpoints if found.listener == listener), None)


def broker_path(broker_id: int) -> str:
    """Return /brokers/ids/N."""
    return f"{BROKER_IDS_PATH}/{broker_id}"


def broker_ids(names: Iterable[str]) -> list[BrokerId]:
    """Return the ids among the children of /brokers/ids; others are no names of brokers."""
    found = (int(name) for name in names if _BROKER_ID.fullmatch(name))
    return [BrokerId(number) for number in found if number < 2**31]


def encode_broker(registration: BrokerRegistration) -> bytes:
    """Return version 4 of the registration (KIP-103).

    host and port are those of the first PLAINTEXT listener, for old clients that know nothing else;
    without one they are null and -1, as Kafka writes them.
    """
    plain = next(
        (one for one in registration.endpoints if one.security_protocol == "PLAINTEXT"), None
    )
    value: dict[str, object] = {
        "version": 4,
        "host": plain.host if plain else None,
        "port": plain.port if plain else -1,
        "jmx_port": registration.jmx_port,
        "timestamp": str(registration.timestamp_ms),
        "endpoints": [str(endpoint) for endpoint in registration.endpoints],
        "listener_security_protocol_map": {
            endpoint.listener: endpoint.security_protocol for endpoint in registration.endpoints
        },
    }
    if registration.rack is not None:
        value["rack"] = registration.rack
    return dump(value)


def decode_broker(path: str, data: bytes | None) -> BrokerRegistration:
    """Read versions 1 to 5; versions 1 and 2 have one plain listener, 3 no listener names."""
    fields = Fields.parse(path, data)
    version = fields.require_version(1, 2, 3, 4, 5)
    broker_id = BrokerId(parse_int32(path, path.rpartition("/")[2].encode()))
    if version < 3:
        endpoints: tuple[BrokerEndpoint, ...] = (
            BrokerEndpoint("PLAINTEXT", fields.string("host"), fields.int32("port")),
        )
    else:
        protocols = (
            fields.string_map("listener_security_protocol_map")
            if "listener_security_protocol_map" in fields
            else {}
        )
        endpoints = tuple(
            _decode_endpoint(path, text, protocols) for text in fields.strings("endpoints")
        )
    rack = fields.optional_string("rack")
    for text in (rack or "", *(part for one in endpoints for part in (one.listener, one.host))):
        check_text(path, text)
    return BrokerRegistration(
        broker_id=broker_id,
        endpoints=endpoints,
        rack=rack,
        timestamp_ms=fields.integer("timestamp", 0),
        jmx_port=fields.integer("jmx_port", -1),
    )


def decode_brokers(
    found: Mapping[str, bytes],
) -> tuple[dict[BrokerId, BrokerRegistration], list[ZnodeError]]:
    """Read registrations by path; return them by broker, and why others are unreadable: one that
    somebody else wrote must not hide all brokers.
    """
    registered: dict[BrokerId, BrokerRegistration] = {}
    unreadable: list[ZnodeError] = []
    for path, data in found.items():
        try:
            one = decode_broker(path, data)
        except ZnodeError as error:
            unreadable.append(error)
        else:
            registered[one.broker_id] = one
    return registered, unreadable


def _decode_endpoint(path: str, text: str, protocols: Mapping[str, str]) -> BrokerEndpoint:
    matched = _ENDPOINT.fullmatch(text)
    if matched is None:
        raise ZnodeError(path, f"endpoint {text[:80]!r} is not NAME://host:port")
    listener, host, port = matched.groups()
    # Before version 4 a listener was named after its protocol.
    protocol = protocols.get(listener, listener)
    if protocol not in SECURITY_PROTOCOLS:
        raise ZnodeError(path, f"listener {listener} has unknown security protocol {protocol!r}")
    return BrokerEndpoint(listener, host, parse_int32(path, port.encode()), protocol)


# --- /brokers/topics/T ------------------------------------------------------------------------

_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")


def _base64(source: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(source.bytes).decode().rstrip("=")


_RESERVED_IDS = frozenset(_base64(uuid.UUID(int=number)) for number in range(2))


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """Which brokers hold each partition of a topic; the first of a list is the preferred leader.

    `adding` and `removing` describe an ongoing reassignment (KIP-455). `topic_id` tells the topic
    from others of the same name (KIP-516); tools and controllers before Kafka 2.8 drop it.
    """

    partitions: Mapping[int, tuple[BrokerId, ...]]
    adding: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    removing: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    topic_id: str | None = None


def topic_path(topic: str) -> str:
    """Return /brokers/topics/T."""
    return f"{TOPICS_PATH}/{topic}"


def encode_topic(assignment: TopicAssignment) -> bytes:
    """Return version 1, or 2 while replicas are being added or removed, or 3 with a topic id."""
    moving = bool(assignment.adding or assignment.removing)
    version = 3 if assignment.topic_id is not None else 2 if moving else 1
    value: dict[str, object] = {"version": version}
    if assignment.topic_id is not None:
        value["topic_id"] = assignment.topic_id
    value["partitions"] = _replica_lists(assignment.partitions)
    if version > 1:
        value["adding_replicas"] = _replica_lists(assignment.adding)
        value["removing_replicas"] = _replica_lists(assignment.removing)
    return dump(value)


def decode_topic(path: str, data: bytes | None) -> TopicAssignment:
    """Read versions 1, 2 and 3. No answer can hold a longer name than a string of the protocol."""
    if not fits_an_answer(path):
        check_text(f"{path[:80]}...", path.rpartition("/")[2])
    fields = Fields.parse(path, data)
    fields.require_version(1, 2, 3)
    return TopicAssignment(
        partitions=_decode_replicas(fields, "partitions"),
        adding=_decode_replicas(fields, "adding_replicas") if "adding_replicas" in fields else {},
        removing=(
            _decode_replicas(fields, "removing_replicas") if "removing_replicas" in fields else {}
        ),
        topic_id=fields.optional_string("topic_id"),
    )


def new_topic_id(source: uuid.UUID) -> str:
    """Return a UUID as Kafka writes topic ids: 22 characters of URL-safe base64."""
    return _base64(source)


def is_topic_id(text: str | None) -> TypeGuard[str]:
    """Return whether Kafka can read this id; its two reserved ones are none."""
    return text is not None and _TOPIC_ID.fullmatch(text) is not None and text not in _RESERVED_IDS


def _replica_lists(partitions: Mapping[int, Sequence[int]]) -> dict[str, list[int]]:
    return {str(partition): list(partitions[partition]) for partition in sorted(partitions)}


def _decode_replicas(fields: Fields, name: str) -> dict[int, tuple[BrokerId, ...]]:
    return {
        partition: tuple(map(BrokerId, replicas))
        for partition, replicas in fields.replica_map(name).items()
    }


# --- /brokers/topics/T/partitions/P/state -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Leader and in-sync set of a partition; `leader` is NO_LEADER if there is none."""

    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    controller_epoch: ControllerEpoch


def partitions_path(topic: str) -> str:
    """Return /brokers/topics/T/partitions."""
    return f"{TOPICS_PATH}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    """Return /brokers/topics/T/partitions/P."""
    return f"{TOPICS_PATH}/{topic}/partitions/{partition}"


def state_path(topic: str, partition: int) -> str:
    """Return /brokers/topics/T/partitions/P/state."""
    return f"{TOPICS_PATH}/{topic}/partitions/{partition}/state"


def parse_state_path(path: str) -> tuple[str, int]:
    """Return T and P of .../topics/T/partitions/P/state."""
    topic, _, partition, _ = path.rsplit("/", 4)[1:]
    return topic, int(partition)


def encode_state(state: PartitionState) -> bytes:
    """Return the state of a partition."""
    return dump(
        {
            "controller_epoch": state.controller_epoch,
            "leader": state.leader,
            "version": 1,
            "leader_epoch": state.leader_epoch,
            "isr": list(state.isr),
        }
    )


def decode_state(path: str, data: bytes | None) -> PartitionState:
    """Read the state of a partition."""
    fields = Fields.parse(path, data)
    fields.require_version(1)
    return PartitionState(
        leader=BrokerId(fields.int32("leader")),
        leader_epoch=LeaderEpoch(fields.int32("leader_epoch")),
        isr=tuple(map(BrokerId, fields.integers("isr"))),
        controller_epoch=ControllerEpoch(fields.int32("controller_epoch")),
    )


# --- /cluster/id, /controller, /controller_epoch ----------------------------------------------


def new_cluster_id(source: uuid.UUID) -> str:
    """Return a UUID as Kafka writes cluster ids: 22 characters of URL-safe base64."""
    return _base64(source)


def encode_cluster_id(cluster_id: str) -> bytes:
    """Return the cluster id; its version is a string in Kafka."""
    return dump({"version": "1", "id": cluster_id})


def decode_cluster_id(path: str, data: bytes | None) -> str:
    """Read the cluster id."""
    fields = Fields.parse(path, data)
    fields.require_version(1)
    return fields.string("id")


@dataclass(frozen=True, slots=True)
class ControllerClaim:
    """Which broker took office, and when in wall-clock time."""

    broker_id: BrokerId
    timestamp_ms: int


def encode_controller(claim: ControllerClaim) -> bytes:
    """Return the claim to be controller."""
    return dump(
        {"version": 1, "brokerid": claim.broker_id, "timestamp": str(claim.timestamp_ms)},
    )


def decode_controller(path: str, data: bytes | None) -> ControllerClaim:
    """Read who is controller."""
    fields = Fields.parse(path, data)
    return ControllerClaim(BrokerId(fields.int32("brokerid")), fields.integer("timestamp", 0))


def encode_controller_epoch(epoch: int) -> bytes:
    """Return the controller epoch as plain text."""
    return str(epoch).encode()


def decode_controller_epoch(path: str, data: bytes | None) -> ControllerEpoch:
    """Read the controller epoch."""
    return ControllerEpoch(parse_int32(path, data))


# --- /config ----------------------------------------------------------------------------------


def config_path(entity_type: str, name: str) -> str:
    """Return /config/TYPE/NAME; TYPE is topics, brokers, clients or users."""
    return f"{CONFIG_PATH}/{entity_type}/{name}"


def topic_config_path(topic: str) -> str:
    """Return /config/topics/T."""
    return config_path("topics", topic)


def broker_config_path(broker: str) -> str:
    """Return /config/brokers/N, or the node of every broker for `<default>` (KIP-226)."""
    return config_path("brokers", broker)


def encode_config(config: Mapping[str, str]) -> bytes:
    """Return the overrides of one entity."""
    return dump({"version": 1, "config": dict(config)})


def decode_config(path: str, data: bytes | None) -> dict[str, str]:
    """Read the overrides of one entity; an empty znode has none."""
    if not data:
        return {}
    fields = Fields.parse(path, data)
    fields.require_version(1)
    return fields.string_map("config")


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """Whose overrides changed: `topics/T`, `brokers/N`, or `users/U/clients/C`."""

    entity_path: str

    @property
    def entity_type(self) -> str:
        """Return the first part of the path."""
        return self.entity_path.partition("/")[0]

    @property
    def entity_name(self) -> str:
        """Return the rest of the path."""
        return self.entity_path.partition("/")[2]


def encode_config_change(change: ConfigChange) -> bytes:
    """Return version 2 of the notification."""
    return dump({"version": 2, "entity_path": change.entity_path})


def decode_config_change(path: str, data: bytes | None) -> ConfigChange:
    """Read versions 1 and 2 of the notification."""
    fields = Fields.parse(path, data)
    if fields.require_version(1, 2) == 1:
        change = ConfigChange(f"{fields.string('entity_type')}/{fields.string('entity_name')}")
    else:
        change = ConfigChange(fields.string("entity_path"))
    parts = change.entity_path.split("/")
    if len(parts) < 2 or not {"", ".", ".."}.isdisjoint(parts):
        # The path is read below /config; ZooKeeper's client refuses such a one.
        raise ZnodeError(path, f"{change.entity_path!r} is not TYPE/NAME")
    return change


# --- /admin -----------------------------------------------------------------------------------


def delete_topic_path(topic: str) -> str:
    """Return /admin/delete_topics/T, an empty znode that requests the deletion of T."""
    return f"{DELETE_TOPICS_PATH}/{topic}"


def encode_delete_topics(topics: Iterable[str]) -> bytes:
    """Return the payload form on /admin/delete_topics itself; no topics make it empty."""
    wanted = list(topics)
    return dump({"version": 1, "topics": wanted}) if wanted else b""


def decode_delete_topics(path: str, data: bytes | None) -> tuple[str, ...]:
    """Read the payload form; Kafka leaves the node empty. A name may be that of no znode."""
    if not data:
        return ()
    fields = Fields.parse(path, data)
    fields.require_version(1)
    return fields.strings("topics")


def encode_reassignment(wanted: Mapping[TopicPartition, Sequence[int]]) -> bytes:
    """Return the target replicas of each partition."""
    return dump(
        {
            "version": 1,
            "partitions": [
                {"topic": one.topic, "partition": one.partition, "replicas": list(replicas)}
                for one, replicas in wanted.items()
            ],
        }
    )


def decode_reassignment(
    path: str, data: bytes | None
) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Read the target replicas of each partition. A topic may have the name of no znode."""
    fields = Fields.parse(path, data)
    fields.require_version(1)
    return {
        _decode_partition(entry): tuple(map(BrokerId, entry.integers("replicas")))
        for entry in fields.nested_list("partitions")
    }


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """Return a list of partitions, for preferred elections and ISR change notifications."""
    return dump(
        {
            "version": 1,
            "partitions": [{"topic": one.topic, "partition": one.partition} for one in partitions],
        }
    )


def decode_partitions(path: str, data: bytes | None) -> tuple[TopicPartition, ...]:
    """Read a list of partitions. A topic may have the name of no znode."""
    fields = Fields.parse(path, data)
    fields.require_version(1)
    return tuple(_decode_partition(entry) for entry in fields.nested_list("partitions"))


def _decode_partition(entry: Fields) -> TopicPartition:
    return TopicPartition(entry.string("topic"), entry.int32("partition"))


encode_preferred_election = encode_partitions
decode_preferred_election = decode_partitions

# --- notifications -------------------------------------------------------------------------------

encode_isr_change = encode_partitions


def decode_isr_change(path: str, data: bytes | None) -> tuple[TopicPartition, ...]:
    """Read which partitions changed; their states are read next, so topics name znodes."""
    changed = decode_partitions(path, data)
    for one in changed:
        check_part(path, one.topic)
    return changed


LOG_DIR_FAILED_EVENT = 1


def encode_log_dir_event(broker_id: int) -> bytes:
    """Return the notification that a log directory of this broker failed."""
    return dump({"version": 1, "broker": broker_id, "event": LOG_DIR_FAILED_EVENT})


def decode_log_dir_event(path: str, data: bytes | None) -> BrokerId:
    """Read which broker has a failed log directory."""
    fields = Fields.parse(path, data)
    fields.require_version(1)
    if fields.integer("event") != LOG_DIR_FAILED_EVENT:
        raise ZnodeError(path, f"event {fields.integer('event')} is unknown")
    return BrokerId(fields.int32("broker"))
