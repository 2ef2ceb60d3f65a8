"""A follower is done with the records of an answer before it asks its leader anything else."""

from __future__ import annotations

import asyncio
from pathlib import Path

from odradek.clock import monotonic_ms
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)
from odradek.protocol.messages.offsets import ListOffsetsRequest
from odradek.values import TopicPartition
from tests.support import logs
from tests.support.replicas import KEY, TOPIC, Replicas

LEADER = 2
OTHER = TopicPartition("other", 0)


class ReusingLeader:
    """Has lost the records of one partition; each answer is in the memory of the one before."""

    def __init__(self) -> None:
        self._frame = bytearray(logs.batch(b"a"))
        self.asked = asyncio.Event()

    async def call(self, request: object, version: int, timeout_ms: int) -> FetchResponse:
        await asyncio.sleep(0)
        if isinstance(request, ListOffsetsRequest):
            self._frame[:] = bytes(len(self._frame))
            self.asked.set()
            raise ConnectionError("gone")
        assert isinstance(request, FetchRequest)
        records = memoryview(self._frame)
        return FetchResponse(
            responses=[
                FetchableTopicResponse(topic=topic, partition_responses=[answer])
                for topic, answer in (
                    (TOPIC, lost()),
                    (
                        OTHER.topic,
                        FetchablePartitionResponse(
                            partition=0, high_watermark=1, record_set=records
                        ),
                    ),
                )
            ]
        )

    async def close(self) -> None:
        """Nothing is open."""


def lost() -> FetchablePartitionResponse:
    return FetchablePartitionResponse(
        partition=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE, high_watermark=-1, record_set=b""
    )


async def test_records_are_copied_before_the_range_of_another_partition_is_asked_for(
    tmp_path: Path,
) -> None:
    async with Replicas(tmp_path, replica_fetch_backoff_ms="3600000") as replicas:
        leader = ReusingLeader()
        for topic in (TOPIC, OTHER.topic):
            await replicas.take(leader=LEADER, replicas=(1, LEADER), epoch=1, topic=topic)
        fetcher = replicas.fetcher_from(LEADER, leader, monotonic_ms)
        fetcher.add(replicas.manager.partitions[OTHER])
        copying = asyncio.create_task(fetcher.run())
        async with asyncio.timeout(60):
            await leader.asked.wait()
        copying.cancel()
        assert replicas.manager.partitions[OTHER].log.log_end_offset == 1
        assert replicas.manager.partitions[KEY].log.log_end_offset == 0
