"""The replicas of new topics and partitions: as the request lists them, or as they are assigned."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from odradek import assignment
from odradek.controller.replica_assignment import MOST_REPLICAS
from odradek.handlers.context import Broker
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsTopic,
)
from odradek.values import BrokerId

# In a request: as many as the broker's config says.
USE_DEFAULT = -1

Replicas = Mapping[int, tuple[BrokerId, ...]]


def racks(broker: Broker) -> dict[BrokerId, str | None]:
    """Return the rack of each live broker, None where it has none."""
    return {BrokerId(one.broker_id): one.rack for one in broker.metadata.brokers.values()}


def nodes(broker: Broker) -> assignment.Nodes:
    """Return the node of each broker, if a partition may have one replica per node only."""
    if not broker.config.one_replica_per_node:
        return {}
    name = broker.config.inter_broker_listener_name
    return {
        one.broker_id: endpoint[0]
        for one in broker.metadata.brokers.values()
        if (endpoint := one.endpoints.get(name)) is not None
    }


def of_new_topic(broker: Broker, topic: CreatableTopic) -> Replicas:
    """Return the replicas of each partition of a topic to be created. Raises KafkaError."""
    brokers = racks(broker)
    if topic.assignments:
        if topic.num_partitions != USE_DEFAULT or topic.replication_factor != USE_DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Both partitions or replication factor and replica assignments are given; "
                "they cannot be used together.",
            )
        return _listed(nodes(broker), topic.assignments)
    config = broker.config
    partitions, factor = topic.num_partitions, topic.replication_factor
    return assignment.assign_replicas(
        brokers,
        config.num_partitions if partitions == USE_DEFAULT else partitions,
        config.default_replication_factor if factor == USE_DEFAULT else factor,
        assignment.Start.draw(broker.random, len(brokers)),
        nodes=nodes(broker),
    )


def of_new_partitions(
    broker: Broker, topic: CreatePartitionsTopic, first: int, extra: int
) -> dict[int, tuple[BrokerId, ...]]:
    """Return the replicas of `extra` partitions to be added, the first of which has the number
    `first`. Raises KafkaError.
    """
    brokers = racks(broker)
    known = broker.metadata.partition(topic.name, 0)
    if known is None:
        reason = "Partition 0 has no leader yet: how many replicas it has is not known."
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, reason)
    zero = known.replicas
    if topic.assignments is not None:
        if len(topic.assignments) != extra:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{extra} partitions are added, {len(topic.assignments)} assignments given.",
            )
        if any(len(one.broker_ids) != len(zero) for one in topic.assignments):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The topic's partitions have {len(zero)} replicas.",
            )
        added = {
            first + index: _of_one(one.broker_ids, most=len(brokers))
            for index, one in enumerate(topic.assignments)
        }
        _check(added, nodes(broker))
        _check_alive(added, brokers)
        return added
    places = sorted(brokers)
    start = places.index(BrokerId(zero[0])) if zero[0] in brokers else 0
    return dict(
        assignment.assign_replicas(
            brokers,
            extra,
            len(zero),
            assignment.Start.fixed(start),
            first_partition=first,
            nodes=nodes(broker),
        )
    )


def _listed(on_nodes: assignment.Nodes, given: Sequence[CreatableReplicaAssignment]) -> Replicas:
    """Return the replicas of a new topic. Brokers that are down may be among them: as in Kafka,
    which does not look, partitions wait for theirs.
    """
    replicas = {one.partition_index: _of_one(one.broker_ids, most=MOST_REPLICAS) for one in given}
    if len(replicas) != len(given) or sorted(replicas) != list(range(len(given))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    _check(replicas, on_nodes)
    return replicas


def _of_one(given: Sequence[int], most: int) -> tuple[BrokerId, ...]:
    """Return a replica list. Raise INVALID_REPLICA_ASSIGNMENT for one of more than `most`."""
    if len(given) > most:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"A replica list names {len(given)} brokers; no more than {most} are possible.",
        )
    return tuple(map(BrokerId, given))


def _check(replicas: Replicas, on_nodes: assignment.Nodes) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT for an invalid assignment.

    All lists must have the same length and name different brokers, which share none of the nodes
    `on_nodes`. Kafka lets empty lists and negative ids pass, of which no partition could be made.
    """
    sizes = {len(members) for members in replicas.values()}
    reason = ""
    if len(sizes) > 1:
        reason = "All partitions should have the same number of replicas."
    for partition, members in replicas.items():
        if not members:
            reason = f"Partition {partition} has an empty replica list."
        elif min(members) < 0:
            reason = f"Partition {partition} has a negative broker id: {list(members)}."
        elif len(set(members)) != len(members):
            reason = f"Partition {partition} names a broker twice: {list(members)}."
        else:
            reason = assignment.same_node(partition, members, on_nodes) or reason
    if reason:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


def _check_alive(replicas: Replicas, brokers: Collection[BrokerId]) -> None:
    """Raise INVALID_REPLICA_ASSIGNMENT if brokers other than these are named."""
    for partition, members in replicas.items():
        unknown = sorted(set(members).difference(brokers))
        if unknown:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Partition {partition} names unknown brokers {unknown}.",
            )
