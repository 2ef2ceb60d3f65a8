"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: positions in logs, and the log start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Generator
from dataclasses import dataclass
from functools import partial

from odradek import slices
from odradek.clock import wall_ms
from odradek.handlers.context import Broker, RequestContext
from odradek.handlers.fetch_answers import READ_COMMITTED
from odradek.log.partition.log import Log
from odradek.log.partition.reading import TimestampOffset
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from odradek.replica.metadata import MetadataCache
from odradek.replica.partition import Partition
from odradek.replica.purgatory import AllOf
from odradek.replica.reads import DEBUGGING_CONSUMER
from odradek.values import INTERNAL_TOPICS, TopicPartition

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
FIRST_WITH_ONE_OFFSET = 1
FIRST_WITH_OFFSET_NOT_AVAILABLE = 5
# Offsets of segments in one answer of version 0; once it has so many, one for each further entry.
MOST_SEGMENT_OFFSETS = 100_000
HIGH_WATERMARK = -1
UNKNOWN = -1


async def list_offsets(
    broker: Broker, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse:
    """Return offsets by timestamp, or of the log start (-2) and the log end (-1).

    As in Kafka, a partition that is named twice is refused, in version 0 answered twice. There an
    answer may have an offset of each segment, so that few names could make an endless one.
    """
    counts: Counter[TopicPartition] = Counter()
    if len(request.topics) > 1 or any(len(topic.partitions) > 1 for topic in request.topics):
        for number, few in enumerate(
            slices.cut_members(request.topics, lambda topic: topic.partitions, slices.KEYS_AT_ONCE)
        ):
            if number:
                await slices.pause()
            counts.update(TopicPartition(topic.name, part.partition_index) for topic, part in few)
    answer = ListOffsetsResponse(topics=[])
    steps = 0
    room = MOST_SEGMENT_OFFSETS
    for topic in request.topics:
        found: list[ListOffsetsPartitionResponse] = []
        answer.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=found))
        steps += 1
        if steps >= slices.STEPS_PER_SLICE:
            steps = 0
            await slices.pause()
        for part in topic.partitions:
            index = part.partition_index
            if counts and context.version > 0 and counts[TopicPartition(topic.name, index)] > 1:
                found.append(
                    ListOffsetsPartitionResponse(
                        partition_index=index, error_code=ErrorCode.INVALID_REQUEST
                    )
                )
            else:
                one = await _list_one(broker, request, context.version, topic.name, part, room)
                room = max(room - len(one.old_style_offsets), 1)
                found.append(one)
                if context.version == 0:
                    steps += _segments(broker, TopicPartition(topic.name, index))
            steps += 1
            if steps >= slices.STEPS_PER_SLICE:
                steps = 0
                await slices.pause()
    slices.discard(counts)
    return answer


def _segments(broker: Broker, key: TopicPartition) -> int:
    """Return how many segments version 0 looks at."""
    partition = broker.replicas.partitions.get(key)
    return 0 if partition is None or partition.offline else len(partition.log.segments)


async def _list_one(
    broker: Broker,
    request: ListOffsetsRequest,
    version: int,
    topic: str,
    asked: ListOffsetsPartition,
    room: int,
) -> ListOffsetsPartitionResponse:
    """Return the answer about one partition, which in version 0 has room for so many offsets."""
    answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index)
    key = TopicPartition(topic, asked.partition_index)
    replica_id = request.replica_id
    if replica_id == DEBUGGING_CONSUMER:
        partition = broker.replicas.partitions.get(key)
        error = ErrorCode.NONE if partition else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        partition, error = broker.replicas.leader_or_error(key, asked.current_leader_epoch)
    if partition is None:
        answer.error_code = error
        return answer
    consumer = replica_id < 0
    if (
        asked.timestamp != EARLIEST_TIMESTAMP
        and partition.is_leader
        and not broker.replicas.leadership_confirmed(partition)
    ):
        # A newer leader may be ahead: an end offset that falls looks like lost data.
        answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return answer
    end = partition.high_watermark if consumer else partition.log.log_end_offset
    if consumer and request.isolation_level == READ_COMMITTED:
        end = partition.log.last_stable_offset(end)
    try:
        if version == 0:
            answer.old_style_offsets = _offsets_before(
                partition.log, asked.timestamp, end, min(asked.max_num_offsets, room)
            )
        elif asked.timestamp == EARLIEST_TIMESTAMP:
            answer.offset = partition.log.log_start_offset
            answer.leader_epoch = partition.log.epochs.epoch_of(answer.offset)
        elif (
            consumer
            and partition.is_leader
            and partition.high_watermark < partition.leader_epoch_start
        ):
            # The end may seem to fall until this leader knows the high watermark of its predecessor
            # (KIP-207).
            answer.error_code = (
                ErrorCode.OFFSET_NOT_AVAILABLE
                if version >= FIRST_WITH_OFFSET_NOT_AVAILABLE
                else ErrorCode.LEADER_NOT_AVAILABLE
            )
        elif asked.timestamp == LATEST_TIMESTAMP:
            answer.offset = end
            answer.leader_epoch = partition.leader_epoch
        else:
            await _by_timestamp(broker, partition, asked.timestamp, end, answer)
    except KafkaError as refusal:
        answer.error_code = refusal.code
    return answer


def _offsets_before(log: Log, timestamp: int, end: int, most: int) -> list[int]:
    """Return the answer of version 0: base offsets of segments older than `timestamp`.

    The newest comes first. The log end counts as one more segment, written now (Kafka's
    legacyFetchOffsetsBefore).
    """
    if timestamp == EARLIEST_TIMESTAMP:
        return [log.log_start_offset][:most]
    latest = timestamp == LATEST_TIMESTAMP
    offsets = [
        max(segment.base_offset, log.log_start_offset)
        for segment in log.segments
        if segment.base_offset < end and (latest or segment.newest_or_modified_ms() <= timestamp)
    ]
    if latest or wall_ms() <= timestamp:
        offsets.append(end)
    return offsets[::-1][: max(most, 0)]


async def _by_timestamp(
    broker: Broker,
    partition: Partition,
    timestamp: int,
    end: int,
    answer: ListOffsetsPartitionResponse,
) -> None:
    """Look up a timestamp in a thread: it reads and decompresses batches of old segments."""
    if partition.log.config.message_magic < 1:
        # The present message format has no timestamps.
        raise KafkaError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    found = await _since(broker, partition, timestamp)
    if found is not None and found.offset < end:
        answer.timestamp = found.timestamp
        answer.offset = found.offset
        answer.leader_epoch = found.leader_epoch


async def _since(broker: Broker, partition: Partition, timestamp: int) -> TimestampOffset | None:
    while True:
        log = partition.log
        try:
            found = await broker.replicas.in_thread(log.reader.offset_for_timestamp, timestamp)
        except KafkaError:
            if partition.log is log:
                raise
        if partition.log is log:  # else it moved to another log directory meanwhile
            return found


async def offset_for_leader_epoch(
    broker: Broker, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    """Return where epochs end in the leader's log (KIP-101, KIP-279)."""
    answer = OffsetForLeaderEpochResponse(topics=[])
    steps = 0
    for topic in request.topics:
        found: list[OffsetForLeaderEpochEndOffset] = []
        answer.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=found))
        steps += 1
        if steps % slices.STEPS_PER_SLICE == 0:
            await slices.pause()
        for part in topic.partitions:
            found.append(_epoch_end(broker, topic.topic, part))
            steps += 1
            if steps % slices.STEPS_PER_SLICE == 0:
                await slices.pause()
    return answer


def _epoch_end(
    broker: Broker, topic: str, asked: OffsetForLeaderPartition
) -> OffsetForLeaderEpochEndOffset:
    partition, error = broker.replicas.leader_or_error(
        TopicPartition(topic, asked.partition), asked.current_leader_epoch
    )
    if partition is None:
        return OffsetForLeaderEpochEndOffset(error_code=error, partition=asked.partition)
    epoch, end_offset = partition.log.end_offset_for_epoch(asked.leader_epoch)
    if end_offset == UNKNOWN and not broker.replicas.end_offset_confirmed(partition):
        # A newer leader may know the epoch; "unknown" would mean truncation to a client.
        return OffsetForLeaderEpochEndOffset(
            error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, partition=asked.partition
        )
    return OffsetForLeaderEpochEndOffset(
        partition=asked.partition, leader_epoch=epoch, end_offset=end_offset
    )


@dataclass(frozen=True, slots=True)
class _Deletion:
    """Records that the leader has hidden and its followers have not yet."""

    partition: Partition
    leadership_generation: int
    before: int
    result: DeleteRecordsPartitionResult

    @property
    def still_leader(self) -> bool:
        """Return whether this broker is still leader, so that followers report to it."""
        return (
            self.partition.is_leader
            and self.partition.leadership_generation == self.leadership_generation
        )

    @property
    def is_durable_here(self) -> bool:
        """Return whether the records stay deleted on this broker after a crash."""
        partition = self.partition
        return not partition.offline and partition.log.durable_log_start >= self.before

    def is_settled(self, metadata: MetadataCache) -> bool:
        """Return whether there is nothing to wait for."""
        alive = metadata.brokers
        return self.reaches(alive) or not self.still_leader or not self.is_durable_here

    def reaches(self, alive: Container[int]) -> bool:
        """Return whether the records stay deleted on every replica that is in sync or alive."""
        return self.partition.low_watermark(alive) >= self.before


async def delete_records(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    """Advance log starts.

    The answer waits until every replica that is in sync or alive did so durably and has the least
    log start, or error 7 on timeout: a replica that has not done so could become leader and serve
    the records again.
    """
    begun: list[_Deletion] = []
    answer = DeleteRecordsResponse(topics=[])
    deletions = await slices.run(_deletions_once(request))
    for few in slices.cut_members(deletions.items(), lambda entry: entry[1].values()):
        for (name, _), part in few:
            if not answer.topics or answer.topics[-1].name != name:
                answer.topics.append(DeleteRecordsTopicResult(name=name, partitions=[]))
            answer.topics[-1].partitions.append(_delete_before(broker, name, part, begun))
        if len(few) == slices.STEPS_PER_SLICE:
            await slices.pause()
    slices.discard(deletions)

    tried: list[Log] = []
    # Again where a replica moved to another log directory meanwhile.
    while pending := [
        one.partition.log
        for one in begun
        if not one.is_durable_here and one.partition.log not in tried
    ]:
        await broker.replicas.checkpoint_start_offsets(pending)
        tried += pending

    settled = AllOf([partial(one.is_settled, broker.metadata) for one in begun])
    if not settled():
        await broker.replicas.wait_for_low_watermark(
            {one.partition.key for one in begun}, request.timeout_ms, settled
        )
    for one in begun:
        alive = broker.metadata.brokers
        if not one.still_leader:
            one.result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif not one.is_durable_here:
            one.result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        elif not one.reaches(alive):
            one.result.error_code = ErrorCode.REQUEST_TIMED_OUT
        else:
            one.result.low_watermark = one.partition.low_watermark(alive)
    return answer


def _deletions_once(
    request: DeleteRecordsRequest,
) -> Generator[None, None, dict[str, dict[int, DeleteRecordsPartition]]]:
    """Return the deletions by topic; as in Kafka, the last entry of a partition counts."""
    topics: dict[str, dict[int, DeleteRecordsPartition]] = {}
    for number, few in enumerate(
        slices.cut_members(request.topics, lambda topic: topic.partitions, slices.KEYS_AT_ONCE)
    ):
        if number:
            yield
        for topic, part in few:
            topics.setdefault(topic.name, {})[part.partition_index] = part
    return topics


def _delete_before(
    broker: Broker, topic: str, asked: DeleteRecordsPartition, begun: list[_Deletion]
) -> DeleteRecordsPartitionResult:
    """Delete records on the leader; add to `begun` what to wait for."""
    index = asked.partition_index
    if topic in INTERNAL_TOPICS:
        return _deleted(index, ErrorCode.INVALID_TOPIC_EXCEPTION)
    partition, error = broker.replicas.leader_or_error(TopicPartition(topic, index))
    if partition is None:
        return _deleted(index, error)
    if "delete" not in partition.log.config.cleanup_policy:
        return _deleted(index, ErrorCode.POLICY_VIOLATION)
    wanted = partition.high_watermark if asked.offset == HIGH_WATERMARK else asked.offset
    if not 0 <= wanted <= partition.high_watermark:
        return _deleted(index, ErrorCode.OFFSET_OUT_OF_RANGE)
    try:
        partition.log.advance_log_start(wanted)
    except KafkaError as refusal:
        return _deleted(index, refusal.code)
    result = _deleted(index, ErrorCode.NONE)
    begun.append(_Deletion(partition, partition.leadership_generation, wanted, result))
    return result


def _deleted(index: int, error: ErrorCode) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=index, low_watermark=UNKNOWN, error_code=error
    )
