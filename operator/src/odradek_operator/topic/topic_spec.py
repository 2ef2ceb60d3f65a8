"""A Topic as the API server admitted it, read into a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from odradek import properties, topic_config
from odradek_operator.shared.spec import Body, InvalidSpec


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
