"""Metrics of the groups and the transactional ids that this broker coordinates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from odradek.group.coordinator import GroupCoordinator
    from odradek.transaction.coordinator import TransactionCoordinator

MOST_GROUPS = 1000
MOST_GROUP_OFFSETS = 10_000


def groups(coordinator: GroupCoordinator) -> Iterator[Metric]:
    """Yield metrics of the groups coordinated here, with kafka_exporter's names."""
    summaries = coordinator.summaries()
    states = Counter(one.state.value for one in summaries)
    by_state = GaugeMetricFamily(
        "odradek_groups", "Groups coordinated by this broker", labels=["state"]
    )
    for state, count in sorted(states.items()):
        by_state.add_metric([state], count)
    members = GaugeMetricFamily(
        "kafka_consumergroup_members", "Members of the group", labels=["consumergroup"]
    )
    generation = GaugeMetricFamily(
        "odradek_group_generation", "Rebalances of the group", labels=["consumergroup"]
    )
    for one in summaries[:MOST_GROUPS]:
        members.add_metric([one.group_id], one.members)
        generation.add_metric([one.group_id], one.generation)
    offset = GaugeMetricFamily(
        "kafka_consumergroup_current_offset",
        "Committed offset of the group",
        labels=["consumergroup", "topic", "partition"],
    )
    committed = (
        ([one.group_id, topic, str(partition)], commit.offset)
        for one in summaries
        for (topic, partition), commit in one.offsets
    )
    for labels, value in islice(committed, MOST_GROUP_OFFSETS):
        offset.add_metric(labels, value)
    yield from (by_state, members, generation, offset)
    yield CounterMetricFamily(
        "odradek_groups_refused",
        "Joins and commits of new groups refused because of odradek.max.groups",
        value=coordinator.refused,
    )
    yield CounterMetricFamily(
        "odradek_offset_commits", "Offsets committed by groups", value=coordinator.commits.stored
    )
    yield CounterMetricFamily(
        "odradek_offsets_expired",
        "Committed offsets that expired",
        value=coordinator.expiry.expired,
    )


def transactions(coordinator: TransactionCoordinator) -> Iterator[Metric]:
    """Yield metrics of the transactional ids coordinated here."""
    by_state = GaugeMetricFamily(
        "odradek_transactional_ids",
        "Transactional ids coordinated by this broker",
        labels=["state"],
    )
    for state, count in sorted(coordinator.count_by_state().items()):
        by_state.add_metric([str(state)], count)
    yield by_state
    yield CounterMetricFamily(
        "odradek_transactions_timed_out",
        "Transactions aborted because they took longer than their producers' timeout",
        value=coordinator.timed_out,
    )
    yield CounterMetricFamily(
        "odradek_transactional_ids_refused",
        "InitProducerIds of new transactional ids refused because of odradek.max.transactional.ids",
        value=coordinator.refused,
    )
