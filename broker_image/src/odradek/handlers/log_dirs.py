"""DescribeLogDirs (KIP-113): the replicas in each log directory of this broker."""

from __future__ import annotations

from collections import defaultdict

from odradek import slices
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.admin import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from odradek.values import TopicPartition


async def describe_log_dirs(
    broker: Broker, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    """Return each log directory with the requested partitions, their sizes and their lag.

    A failed directory has KAFKA_STORAGE_ERROR and no partitions.
    """
    wanted = None
    if request.topics is not None:
        wanted = {
            TopicPartition(topic.topic, index)
            for topic in request.topics
            for index in topic.partition_index
        }
    directories = broker.replicas.log_directories()
    answer = DescribeLogDirsResponse(results=[])
    for path, contents in directories.items():
        result = DescribeLogDirsResult(log_dir=path, topics=[])
        answer.results.append(result)
        if contents is None:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            continue
        topics: dict[str, DescribeLogDirsTopic] = {}
        for part in slices.cut(contents):
            for one in _topics(broker, part, wanted):
                known = topics.setdefault(one.name, one)
                if known is not one:
                    known.partitions += one.partitions
            await slices.pause()
        result.topics = list(topics.values())
    return answer


def _topics(
    broker: Broker, contents: list[TopicPartition], wanted: set[TopicPartition] | None
) -> list[DescribeLogDirsTopic]:
    topics: dict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
    for key in contents:
        partition = broker.replicas.partitions.get(key)
        if partition is None or (wanted is not None and key not in wanted):
            continue
        log = partition.log
        topics[key.topic].append(
            DescribeLogDirsPartition(
                partition_index=key.partition,
                partition_size=log.segments.size,
                # How many committed records this replica has yet to fetch.
                offset_lag=max(log.high_watermark - log.log_end_offset, 0),
            )
        )
    return [DescribeLogDirsTopic(name=name, partitions=found) for name, found in topics.items()]
