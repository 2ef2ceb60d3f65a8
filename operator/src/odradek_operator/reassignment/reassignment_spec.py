"""A Reassignment as the API server admitted it, read into a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from odradek.values import TopicPartition
from odradek_operator.shared.spec import Body


@dataclass(frozen=True, slots=True)
class ReassignmentSpec:
    """A Reassignment as wanted. `topics` None: all. `retains`: its deletion stops nothing."""

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
    retains: bool


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
        retains=spec.get("deletionPolicy") == "Retain",
    )
