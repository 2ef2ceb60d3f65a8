"""How a topic differs from its spec. Only what the spec names, or once named, can differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from odradek.zk.znodes import TopicAssignment
from odradek_operator.shared.views import TopicView
from odradek_operator.topic.topic_spec import TopicSpec

# A running reassignment keeps its throttles here (KIP-73); they are never drift.
THROTTLE_KEYS: Final = frozenset(
    {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)

# What the schema of status.drift takes.
MOST: Final = 64
LONGEST_NAME: Final = 256
LONGEST_VALUE: Final = 4096

Drift = tuple[dict[str, str], ...]
SHAPE: Final = frozenset({"partitions", "replicationFactor", "replicaAssignment"})


def find(spec: TopicSpec, view: TopicView, actual: TopicAssignment) -> Drift:
    """Return each difference as {field, desired, actual}."""
    drift: list[tuple[str, object, object]] = []
    if spec.partitions is not None and spec.partitions != len(actual.partitions):
        drift.append(("partitions", spec.partitions, len(actual.partitions)))
    if factor_differs(spec, actual):
        found = ", ".join(map(str, sorted(_factors(actual))))
        drift.append(("replicationFactor", spec.replication_factor, found))
    moved = moved_partitions(spec, actual)
    if moved:
        drift.append(("replicaAssignment", "as in spec", f"partitions {moved} differ"))
    have = dict(view.config or {})
    wanted = wanted_config(spec, have)
    drift.extend(
        (f"config.{name}", wanted.get(name, ""), have.get(name, ""))
        for name in sorted(set(wanted) | set(have))
        if wanted.get(name) != have.get(name)
    )
    return tuple(
        {
            "field": _cut(name, LONGEST_NAME),
            "desired": _cut(desired, LONGEST_VALUE),
            "actual": _cut(found, LONGEST_VALUE),
        }
        for name, desired, found in drift[:MOST]
    )


def _cut(value: object, longest: int) -> str:
    text = str(value)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def wanted_config(spec: TopicSpec, have: Mapping[str, str]) -> dict[str, str]:
    """Return the wanted configuration: the spec's keys, and those that are left to others."""
    kept = spec.unmanaged | (THROTTLE_KEYS - set(spec.config))
    return {**spec.config, **{name: text for name, text in have.items() if name in kept}}


def replication_factor(actual: TopicAssignment) -> int:
    """Return the number of replicas, the smallest where partitions have different ones."""
    return min(_factors(actual), default=0)


def _factors(actual: TopicAssignment) -> set[int]:
    """Return the numbers of replicas, without those that a reassignment adds for a while."""
    return {
        len(set(replicas) - set(actual.adding.get(partition, ())))
        for partition, replicas in actual.partitions.items()
    }


def factor_differs(spec: TopicSpec, actual: TopicAssignment) -> bool:
    """Return whether a partition has another number of replicas than the spec names."""
    return spec.replication_factor is not None and not has_factor(actual, spec.replication_factor)


def has_factor(actual: TopicAssignment, factor: int) -> bool:
    """Return whether each partition has so many replicas."""
    return _factors(actual) == {factor}


def moved_partitions(spec: TopicSpec, actual: TopicAssignment) -> list[int]:
    """Return the partitions that are on other brokers than the spec names."""
    return sorted(
        partition
        for partition, replicas in spec.assignment.items()
        if partition in actual.partitions and tuple(actual.partitions[partition]) != replicas
    )


def of_shape(spec: TopicSpec, view: TopicView, actual: TopicAssignment) -> Drift:
    """Return the differences in partitions and replicas, which adoption compares."""
    return tuple(one for one in find(spec, view, actual) if one["field"] in SHAPE)


def describe(differences: Drift) -> str:
    """Return the differences as a sentence."""
    return "; ".join(
        f"{one['field']} is {one['actual']}, not {one['desired']}" for one in differences
    )
