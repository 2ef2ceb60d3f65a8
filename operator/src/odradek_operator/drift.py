"""Where a topic differs from its resource. Only what the spec names, or has reset, can differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from odradek.zk.znodes import TopicAssignment
from odradek_operator.spec import TopicSpec
from odradek_operator.topic_state import TopicView

# A reassignment under way keeps its throttles here (KIP-73); they are never drift.
THROTTLE_KEYS: Final = frozenset(
    {"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)

Drift = tuple[dict[str, str], ...]
SHAPE: Final = frozenset({"partitions", "replicationFactor", "replicaAssignment"})


def find(spec: TopicSpec, view: TopicView, actual: TopicAssignment) -> Drift:
    """Return each difference as {field, desired, actual}."""
    drift: list[tuple[str, object, object]] = []
    if spec.partitions is not None and spec.partitions != len(actual.partitions):
        drift.append(("partitions", spec.partitions, len(actual.partitions)))
    factor = replication_factor(actual)
    if spec.replication_factor is not None and spec.replication_factor != factor:
        drift.append(("replicationFactor", spec.replication_factor, factor))
    moved = {
        partition
        for partition, replicas in spec.assignment.items()
        if partition in actual.partitions and tuple(actual.partitions[partition]) != replicas
    }
    if moved:
        drift.append(("replicaAssignment", "as in spec", f"partitions {sorted(moved)} differ"))
    have = dict(view.config or {})
    wanted = wanted_config(spec, have)
    drift.extend(
        (f"config.{name}", wanted.get(name, ""), have.get(name, ""))
        for name in sorted(set(wanted) | set(have))
        if wanted.get(name) != have.get(name)
    )
    return tuple(
        {"field": name, "desired": str(desired), "actual": str(found)}
        for name, desired, found in drift[:64]
    )


def wanted_config(spec: TopicSpec, have: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration to be: the spec's keys, and those that are left to others."""
    kept = spec.unmanaged | (THROTTLE_KEYS - set(spec.config))
    return {**spec.config, **{name: text for name, text in have.items() if name in kept}}


def replication_factor(actual: TopicAssignment) -> int:
    """Return the number of replicas, without those that a reassignment adds for a while."""
    if not actual.partitions:
        return 0
    first = min(actual.partitions)
    adding = set(actual.adding.get(first, ()))
    return len([one for one in actual.partitions[first] if one not in adding])


def of_shape(spec: TopicSpec, view: TopicView, actual: TopicAssignment) -> Drift:
    """Return the differences in partitions and replicas, what adoption must agree on."""
    return tuple(one for one in find(spec, view, actual) if one["field"] in SHAPE)


def describe(differences: Drift) -> str:
    """Return the differences as a sentence."""
    return "; ".join(
        f"{one['field']} is {one['actual']}, not {one['desired']}" for one in differences
    )
