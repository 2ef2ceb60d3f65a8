"""WriteTxnMarkers: leaders write the ends of transactions, for their coordinators (KIP-98).

A marker is answered once it is committed: then readers of committed records may see the
transaction's records, or skip them, and the offsets that a group committed in it count, or not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import groupby

from odradek import slices
from odradek.clock import wall_ms
from odradek.handlers.context import Broker, RequestContext
from odradek.log.records import contents
from odradek.log.records.batch import Origin
from odradek.log.records.contents import Marker
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from odradek.replica.appends import ACKS_ALL, Appended, AppendOutcome
from odradek.values import OFFSETS_TOPIC, TopicPartition


async def write_txn_markers(
    broker: Broker, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    """Write the markers, each to the partitions of it that this broker leads; none once their
    coordinator has hung up. It may have sent them again, and would end the next transaction.
    """
    pace = _Pace()
    begun = [
        (marker, [one async for one in _begin(broker, marker, pace, context)])
        for marker in request.markers
    ]
    results = []
    for marker, appends in begun:
        topics: list[WritableTxnMarkerTopicResult] = []
        for appended in appends:
            await appended.acknowledged()
            for outcome in appended.outcomes:
                if outcome.key.topic == OFFSETS_TOPIC and outcome.error is ErrorCode.NONE:
                    await broker.groups.commits.complete_transaction(
                        outcome.key.partition,
                        marker.producer_id,
                        commits=marker.transaction_result,
                        position=outcome.base_offset,
                    )
            topics += _by_topic(appended.outcomes)
            await pace.step(len(appended.outcomes))
        results.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        await pace.step()
    return WriteTxnMarkersResponse(markers=results)


class _Pace:
    """Lets others run between the steps of a large request."""

    def __init__(self) -> None:
        self._steps = 0

    async def step(self, count: int = 1) -> None:
        """Note that steps were made."""
        self._steps += count
        if self._steps >= slices.STEPS_PER_SLICE:
            self._steps = 0
            await slices.pause()


async def _begin(
    broker: Broker, marker: WritableTxnMarker, pace: _Pace, context: RequestContext
) -> AsyncIterator[Appended]:
    """Append a marker to all its partitions, some at a time."""
    data = contents.make_marker(
        marker.producer_id,
        marker.producer_epoch,
        Marker(marker.coordinator_epoch, marker.transaction_result),
        wall_ms(),
    )
    await pace.step()
    for few in slices.cut_members(marker.topics, lambda topic: topic.partition_indexes):
        if not context.is_connected():
            return
        entries = [(TopicPartition(topic.name, index), data) for topic, index in few]
        yield await broker.replicas.begin_append(
            entries, ACKS_ALL, broker.config.request_timeout_ms, Origin.COORDINATOR
        )
        await pace.step(len(few) or slices.STEPS_PER_SLICE)


def _by_topic(outcomes: list[AppendOutcome]) -> Iterator[WritableTxnMarkerTopicResult]:
    """Yield the results by topic: outcomes have the order of the request."""
    for topic, some in groupby(outcomes, key=lambda one: one.key.topic):
        yield WritableTxnMarkerTopicResult(
            name=topic,
            partitions=[
                WritableTxnMarkerPartitionResult(
                    partition_index=one.key.partition, error_code=one.error
                )
                for one in some
            ],
        )
