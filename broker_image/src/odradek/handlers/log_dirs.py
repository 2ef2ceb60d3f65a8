"""AlterReplicaLogDirs and DescribeLogDirs (KIP-113): the log directories of this broker.

Kafka demands Alter on the cluster for the first, Describe on the cluster for the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING

from odradek import slices
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.admin import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from odradek.values import TopicPartition

if TYPE_CHECKING:
    from odradek.log.partition.log import Log


async def alter_replica_log_dirs(
    broker: Broker, request: AlterReplicaLogDirsRequest, context: RequestContext
) -> AlterReplicaLogDirsResponse:
    """Begin the moves that the request asks for; return one error per partition.

    A partition that is named twice goes to the directory that is named last, as in Kafka.
    """
    wanted: dict[TopicPartition, str] = {}
    for number, one in enumerate(request.dirs, 1):
        for count, few in enumerate(
            slices.cut_members(one.topics, lambda topic: topic.partitions, slices.KEYS_AT_ONCE)
        ):
            if count:
                await slices.pause()
            wanted.update((TopicPartition(topic.name, index), one.path) for topic, index in few)
        if number % slices.STEPS_PER_SLICE == 0:
            await slices.pause()
    errors = await broker.replicas.alter_log_dirs(wanted)
    answer = AlterReplicaLogDirsResponse(results=await slices.run(_each_error(errors)))
    slices.discard(wanted, errors)
    return answer


def _each_error(
    errors: Mapping[TopicPartition, ErrorCode],
) -> Generator[None, None, list[AlterReplicaLogDirTopicResult]]:
    topics: dict[str, list[AlterReplicaLogDirPartitionResult]] = defaultdict(list)
    for number, (key, error) in enumerate(errors.items(), 1):
        topics[key.topic].append(
            AlterReplicaLogDirPartitionResult(partition_index=key.partition, error_code=error)
        )
        if number % slices.KEYS_AT_ONCE == 0:
            yield
    answers: list[AlterReplicaLogDirTopicResult] = []
    for few in slices.cut(topics.items(), slices.KEYS_AT_ONCE):
        answers += [
            AlterReplicaLogDirTopicResult(topic_name=topic, partitions=partitions)
            for topic, partitions in few
        ]
        if len(few) == slices.KEYS_AT_ONCE:
            yield
    return answers


async def describe_log_dirs(
    broker: Broker, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    """Return each log directory with the requested partitions, their sizes and their lag.

    A failed directory has KAFKA_STORAGE_ERROR and no partitions.
    """
    wanted: set[TopicPartition] | None = None
    if request.topics is not None:
        wanted = set()
        for number, few in enumerate(
            slices.cut_members(
                request.topics, lambda topic: topic.partition_index, slices.KEYS_AT_ONCE
            )
        ):
            if number:
                await slices.pause()
            wanted.update(TopicPartition(topic.topic, index) for topic, index in few)
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
    if wanted is not None:
        slices.discard(wanted)
    return answer


def _topics(
    broker: Broker, contents: list[tuple[TopicPartition, Log]], wanted: set[TopicPartition] | None
) -> list[DescribeLogDirsTopic]:
    topics: dict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
    for key, log in contents:
        if wanted is not None and key not in wanted:
            continue
        topics[key.topic].append(
            DescribeLogDirsPartition(
                partition_index=key.partition,
                partition_size=log.segments.size,
                offset_lag=_lag(broker, key, log),
                is_future_key=log.is_future,
            )
        )
    return [DescribeLogDirsTopic(name=name, partitions=found) for name, found in topics.items()]


def _lag(broker: Broker, key: TopicPartition, log: Log) -> int:
    """Return how many committed records a replica has yet to fetch, or how many its future log
    lacks; -1 where the replica is offline.
    """
    if not log.is_future:
        return max(log.high_watermark - log.log_end_offset, 0)
    partition = broker.replicas.partitions.get(key)
    if partition is None or partition.offline:
        return -1
    return partition.log.log_end_offset - log.log_end_offset
