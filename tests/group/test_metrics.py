"""The metric series of groups, and their limit."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from odradek.group.coordinator import GroupCoordinator
from odradek.group.offsets import CommittedOffset
from odradek.metrics import coordinator_series
from odradek.metrics.broker_metrics import BrokerMetrics
from odradek.protocol.errors import ErrorCode
from odradek.quarantine import Quarantines, Work
from odradek.values import TopicPartition
from tests.group.test_commit_order import NOBODY, SlowReplicas, loaded, run_ready_callbacks


def series_of(coordinator: GroupCoordinator) -> CollectorRegistry:
    broker = BrokerMetrics()
    broker.watch({}, None, None, coordinator, None, {})  # type: ignore[arg-type]
    registry = CollectorRegistry()
    registry.register(broker)
    return registry


def samples(registry: CollectorRegistry, name: str) -> list[tuple[str, float]]:
    return [
        (sample.labels["consumergroup"], sample.value)
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name
    ]


async def two_groups() -> GroupCoordinator:
    """Return a coordinator: group g has committed partition 0 of t, group h partitions 0 and 1."""
    replicas = SlowReplicas()
    coordinator = await loaded(replicas)
    commits = {TopicPartition("t", partition): CommittedOffset(3, "", 0) for partition in (0, 1)}
    task = asyncio.create_task(coordinator.commits.commit("h", NOBODY, commits))
    await run_ready_callbacks()
    replicas.appends[-1].set_result(ErrorCode.NONE)
    await task
    return coordinator


async def test_groups_are_counted_with_their_offsets() -> None:
    coordinator = await two_groups()
    series = series_of(coordinator)
    assert series.get_sample_value("odradek_groups", {"state": "Empty"}) == 2
    assert samples(series, "kafka_consumergroup_members") == [("g", 0), ("h", 0)]
    offsets = samples(series, "kafka_consumergroup_current_offset")
    assert offsets == [("g", 7), ("h", 3), ("h", 3)]
    assert series.get_sample_value("odradek_offset_commits_total") == 3
    coordinator.close()


async def test_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_series, "MOST_GROUPS", 1)
    monkeypatch.setattr(coordinator_series, "MOST_GROUP_OFFSETS", 2)
    coordinator = await two_groups()
    series = series_of(coordinator)
    assert samples(series, "kafka_consumergroup_members") == [("g", 0)]
    assert len(samples(series, "kafka_consumergroup_current_offset")) == 2
    assert series.get_sample_value("odradek_groups", {"state": "Empty"}) == 2
    coordinator.close()


def test_unexpected_exceptions_are_counted_by_kind_and_what_they_keep_out_is_shown() -> None:
    quarantines = Quarantines()
    registry = CollectorRegistry()
    registry.register(BrokerMetrics(quarantines))

    def value(name: str, work: Work) -> float | None:
        return registry.get_sample_value(name, {"kind": work.kind})

    quarantines.put(Work.COPYING, "t-0", KeyError())
    quarantines.put(Work.COPYING, "t-1", KeyError())
    quarantines.note(Work.TRUNCATION, "t-0", KeyError(), "offline")
    quarantines.release(Work.COPYING, "t-1")
    assert value("odradek_quarantines_total", Work.COPYING) == 2
    assert value("odradek_quarantined", Work.COPYING) == 1
    assert value("odradek_quarantines_total", Work.TRUNCATION) == 1
    assert value("odradek_quarantined", Work.TRUNCATION) == 0
    assert value("odradek_quarantines_total", Work.GROUP) == 0, "a rate needs a first value"
