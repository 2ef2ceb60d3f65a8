"""ListOffsets and its oldest version, DeleteRecords, epochs, and producer ids."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from odradek import slices
from odradek.handlers import control, offsets, producers
from odradek.handlers.context import Broker, RequestContext
from odradek.log.partition import checkpoints
from odradek.log.records import contents
from odradek.log.records.batch import Origin
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.offsets import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from odradek.protocol.messages.producers import InitProducerIdRequest, InitProducerIdResponse
from odradek.replica.fetch_specs import FetchLimits, FetchSpec
from odradek.values import BrokerId, TopicPartition
from odradek.zk import producer_ids, znodes
from tests.handlers.large_requests import Turns
from tests.support import logs
from tests.support.control import state, update
from tests.support.replicas import KEY, Replicas

BLOCK = znodes.PRODUCER_ID_BLOCK_PATH


def call(version: int) -> RequestContext:
    return RequestContext(version, "c", "PLAINTEXT", "h", 1)


async def list_one(
    broker: Broker, timestamp: int, version: int = 5, replica: int = -1, most: int = 1
) -> ListOffsetsPartitionResponse:
    part = ListOffsetsPartition(
        partition_index=KEY.partition, timestamp=timestamp, max_num_offsets=most
    )
    request = ListOffsetsRequest(
        replica_id=replica, topics=[ListOffsetsTopic(name=KEY.topic, partitions=[part])]
    )
    answer = await offsets.list_offsets(broker, request, call(version))
    return answer.topics[0].partitions[0]


async def append(replicas: Replicas, count: int = 1, acks: int = 1) -> None:
    for number in range(count):
        data = logs.batch(b"v", timestamp=logs.START_MS + number * 1000)
        outcomes = await replicas.manager.append([(KEY, data)], acks, 0, Origin.CLIENT)
        assert outcomes[0].error is ErrorCode.NONE


async def test_end_is_the_high_watermark_for_consumers_and_the_log_end_for_followers(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead(isr=(1, 2), replicas=(1, 2))
    await append(replicas, 3)
    assert (await list_one(broker, -1)).offset == 0
    assert (await list_one(broker, -1, replica=2)).offset == 3
    assert (await list_one(broker, -2)).offset == 0


@pytest.mark.parametrize(
    ("version", "error"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)]
)
async def test_end_is_not_told_until_the_new_leader_knows_what_is_committed(
    broker: Broker, replicas: Replicas, version: int, error: ErrorCode
) -> None:
    await replicas.lead(isr=(1, 2), replicas=(1, 2))
    await append(replicas, 3)
    await replicas.lead(isr=(1, 2), replicas=(1, 2), epoch=1)
    assert (await list_one(broker, -1, version)).error_code == error


async def test_timestamp_finds_the_first_record_not_older(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead()
    await append(replicas, 5)
    found = await list_one(broker, logs.START_MS + 1500)
    assert (found.offset, found.timestamp, found.leader_epoch) == (2, logs.START_MS + 2000, 0)
    assert (await list_one(broker, logs.START_MS + 9000)).offset == -1


async def test_lookup_by_time_reads_and_unpacks_in_a_thread(
    broker: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    first_since = contents.first_since

    def noting(*arguments: object) -> object:
        threads.append(threading.get_ident())
        return first_since(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(contents, "first_since", noting)
    await replicas.lead()
    await append(replicas, 3)
    assert (await list_one(broker, logs.START_MS + 1000)).offset == 1
    assert threads
    assert threading.get_ident() not in threads


async def test_timestamp_lookup_does_not_reach_beyond_the_high_watermark(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead(isr=(1, 2), replicas=(1, 2))
    await append(replicas, 2)
    assert (await list_one(broker, logs.START_MS)).offset == -1


async def test_version_0_lists_segment_starts_and_the_end_newest_first(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead()
    await append(replicas, 2)
    replicas.manager.partitions[KEY].log.roll()
    await append(replicas, 2)
    assert (await list_one(broker, -1, 0, most=9)).old_style_offsets == [4, 2, 0]
    assert (await list_one(broker, -1, 0, most=1)).old_style_offsets == [4]
    assert (await list_one(broker, -2, 0, most=9)).old_style_offsets == [0]
    assert (await list_one(broker, 1, 0, most=9)).old_style_offsets == []


async def list_again(broker: Broker, times: int) -> list[list[int]]:
    """Return what version 0 answers to one partition that is named so often."""
    part = ListOffsetsPartition(partition_index=KEY.partition, timestamp=-1, max_num_offsets=9)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=KEY.topic, partitions=[part] * times)]
    )
    answer = await offsets.list_offsets(broker, request, call(0))
    return [one.old_style_offsets for one in answer.topics[0].partitions]


async def test_version_0_gives_few_names_no_endless_answer(
    broker: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    await replicas.lead()
    await append(replicas, 2)
    replicas.manager.partitions[KEY].log.roll()
    await append(replicas, 2)
    turns = Turns()
    again = 2 * slices.STEPS_PER_SLICE
    assert await turns.during(list_again(broker, again)) == [[4, 2, 0]] * again
    # Each looks at two segments, which take time too.
    assert turns.count >= 3
    monkeypatch.setattr(offsets, "MOST_SEGMENT_OFFSETS", 4)
    assert await list_again(broker, 4) == [[4, 2, 0], [4], [4], [4]]


async def test_partition_that_is_led_elsewhere_is_told(broker: Broker, replicas: Replicas) -> None:
    assert (await list_one(broker, -1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await replicas.take(leader=2, isr=(1, 2), replicas=(1, 2))
    assert (await list_one(broker, -1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_leader_that_may_be_deposed_tells_its_start_and_not_its_end(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead(isr=(1, 2), replicas=(1, 2))
    replicas.session.deadline = 0.0
    assert (await list_one(broker, -2)).error_code == ErrorCode.NONE
    for timestamp in (-1, logs.START_MS):
        assert (await list_one(broker, timestamp)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def delete_before(
    broker: Broker, offset: int, topic: str = KEY.topic, timeout_ms: int = 0
) -> tuple[int, int]:
    part = DeleteRecordsPartition(partition_index=KEY.partition, offset=offset)
    answer = await offsets.delete_records(
        broker,
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=[part])], timeout_ms=timeout_ms
        ),
        call(1),
    )
    one = answer.topics[0].partitions[0]
    return one.error_code, one.low_watermark


async def test_deleted_records_move_the_start_up_to_the_high_watermark(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead()
    await append(replicas, 4)
    assert await delete_before(broker, 2) == (ErrorCode.NONE, 2)
    assert (await list_one(broker, -2)).offset == 2
    assert await delete_before(broker, 5) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert await delete_before(broker, -1) == (ErrorCode.NONE, 4)


async def test_records_of_internal_topics_are_not_deleted(broker: Broker) -> None:
    found = await delete_before(broker, 0, "__consumer_offsets")
    assert found == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


async def follow(replicas: Replicas, follower: int, start: int) -> None:
    """One fetch of a follower that holds everything from `start` on."""
    end = replicas.manager.partitions[KEY].log.log_end_offset
    await replicas.manager.fetch(
        [FetchSpec(KEY, end, 1 << 20, leader_epoch=0, start_offset=start)],
        follower,
        FetchLimits(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20),
    )


async def led_with_two_followers(replicas: Replicas, alive: tuple[int, ...]) -> None:
    replicas.metadata.update(update(state(), brokers=alive))
    await replicas.lead(isr=(1, 2), replicas=(1, 2, 3))
    await append(replicas, 4)
    await follow(replicas, 2, start=0)


async def test_deletion_is_answered_when_every_live_replica_did_it(
    broker: Broker, replicas: Replicas
) -> None:
    await led_with_two_followers(replicas, alive=(1, 2))
    deletion = asyncio.create_task(delete_before(broker, 3, timeout_ms=60_000))
    await follow(replicas, 2, start=0)
    await asyncio.sleep(0.05)
    assert not deletion.done()
    await follow(replicas, 2, start=3)
    assert await deletion == (ErrorCode.NONE, 3)


async def test_deletion_that_a_live_replica_does_not_hear_of_times_out(
    broker: Broker, replicas: Replicas
) -> None:
    await led_with_two_followers(replicas, alive=(1, 2, 3))
    await follow(replicas, 2, start=3)
    assert await delete_before(broker, 3, timeout_ms=10) == (ErrorCode.REQUEST_TIMED_OUT, -1)


async def test_deletion_under_way_when_leadership_goes_is_not_vouched_for(
    broker: Broker, replicas: Replicas
) -> None:
    await led_with_two_followers(replicas, alive=(1, 2))
    deletion = asyncio.create_task(delete_before(broker, 3, timeout_ms=60_000))
    await asyncio.sleep(0.05)
    await replicas.take(leader=2, isr=(1, 2), replicas=(1, 2, 3), epoch=1)
    assert await deletion == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def checkpointed_start(replicas: Replicas) -> int:
    folder = os.path.dirname(replicas.manager.partitions[KEY].log.directory)
    path = os.path.join(folder, checkpoints.LOG_START_OFFSETS)
    return checkpoints.read_offsets(path).get(KEY, 0)


async def test_deleted_records_stay_deleted_after_a_crash_at_the_answer(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead()
    await append(replicas, 4)
    assert await delete_before(broker, 3) == (ErrorCode.NONE, 3)
    assert checkpointed_start(replicas) == 3


async def test_deletions_at_the_same_time_share_writes_of_the_checkpoint(
    broker: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = checkpoints.write_offsets

    def note(path: str, offsets: dict[TopicPartition, int]) -> None:
        written.append(path)
        write(path, offsets)

    monkeypatch.setattr(checkpoints, "write_offsets", note)
    await replicas.lead()
    await append(replicas, 20)
    deletions = [delete_before(broker, offset) for offset in range(1, 20)]
    assert {error for error, _ in await asyncio.gather(*deletions)} == {ErrorCode.NONE}
    assert checkpointed_start(replicas) == 19
    assert 1 <= len(written) <= 2
    await delete_before(broker, 19)
    assert len(written) <= 2


async def test_deletion_that_cannot_be_written_is_not_acknowledged(
    broker: Broker, replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_descriptors(*_: object) -> None:
        raise OSError(24, "Too many open files")

    await replicas.lead()
    await append(replicas, 4)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "write_offsets", out_of_descriptors)
        refused = await delete_before(broker, 3, timeout_ms=60_000)
    assert refused == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
    assert await delete_before(broker, 3) == (ErrorCode.NONE, 3)


async def test_deletion_waits_for_a_replica_in_sync_whose_broker_just_went(
    broker: Broker, replicas: Replicas
) -> None:
    await led_with_two_followers(replicas, alive=(1,))
    assert await delete_before(broker, 3, timeout_ms=10) == (ErrorCode.REQUEST_TIMED_OUT, -1)


async def test_deletion_ends_when_a_broker_that_it_waits_for_goes(
    broker: Broker, replicas: Replicas
) -> None:
    await led_with_two_followers(replicas, alive=(1, 2, 3))
    await follow(replicas, 2, start=3)
    deletion = asyncio.create_task(delete_before(broker, 3, timeout_ms=600_000))
    while not len(replicas.manager._hosted.for_low_watermark):
        await asyncio.sleep(0)
    gone = update(state(replicas=(1, 2, 3)), brokers=(1, 2))
    await control.update_metadata(broker, gone, call(5))
    async with asyncio.timeout(60):
        assert await deletion == (ErrorCode.NONE, 3)


async def test_deletion_ends_when_the_leaders_directory_fails(
    broker: Broker, replicas: Replicas
) -> None:
    await led_with_two_followers(replicas, alive=(1, 2))
    deletion = asyncio.create_task(delete_before(broker, 3, timeout_ms=600_000))
    while not len(replicas.manager._hosted.for_low_watermark):
        await asyncio.sleep(0)
    log = replicas.manager.partitions[KEY].log
    replicas.manager.directory_failed(os.path.dirname(log.directory))
    async with asyncio.timeout(60):
        assert await deletion == (ErrorCode.KAFKA_STORAGE_ERROR, -1)


async def end_of(broker: Broker, epoch: int, current: int = -1) -> tuple[int, int, int]:
    part = OffsetForLeaderPartition(
        partition=KEY.partition, current_leader_epoch=current, leader_epoch=epoch
    )
    topic = OffsetForLeaderTopic(topic=KEY.topic, partitions=[part])
    answer = await offsets.offset_for_leader_epoch(
        broker, OffsetForLeaderEpochRequest(topics=[topic]), call(2)
    )
    one = answer.topics[0].partitions[0]
    return one.error_code, one.leader_epoch, one.end_offset


async def test_epoch_ends_are_those_of_the_leaders_log(broker: Broker, replicas: Replicas) -> None:
    await replicas.lead()
    await append(replicas, 3)
    await replicas.lead(epoch=4)
    await append(replicas, 2)

    assert await end_of(broker, 0) == (0, 0, 3)
    assert await end_of(broker, 2) == (0, 0, 3)
    assert await end_of(broker, 4) == (0, 4, 5)
    assert await end_of(broker, 9) == (0, -1, -1)
    assert (await end_of(broker, 0, current=3))[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert (await end_of(broker, 0, current=5))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_epoch_that_a_successor_may_have_begun_is_not_called_unknown(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead(isr=(1, 2), replicas=(1, 2))
    await append(replicas, 3)
    replicas.session.deadline = 0.0
    assert await end_of(broker, 0) == (0, 0, 3)
    assert (await end_of(broker, 1))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def init(broker: Broker) -> InitProducerIdResponse:
    return await producers.init_producer_id(
        broker, InitProducerIdRequest(transaction_timeout_ms=1), call(1)
    )


async def test_ids_rise_and_a_new_block_follows_what_others_took(
    broker: Broker, replicas: Replicas
) -> None:
    taken = producer_ids.ProducerIdBlock(BrokerId(7), 0, 999)
    replicas.session.znodes[BLOCK] = producer_ids.encode_producer_id_block(taken), 4
    answers = await asyncio.gather(*(init(broker) for _ in range(1001)))
    ids = [one.producer_id for one in answers]
    assert ids == list(range(1000, 2001))
    last = producer_ids.decode_producer_id_block(BLOCK, replicas.session.znodes[BLOCK][0])
    assert last == producer_ids.ProducerIdBlock(BrokerId(1), 2000, 2999)


async def test_block_that_another_broker_took_meanwhile_is_not_handed_out(
    broker: Broker, replicas: Replicas
) -> None:
    replicas.session.znodes[BLOCK] = b"", 0
    other = producer_ids.ProducerIdManager(replicas.session, 2)  # type: ignore[arg-type]
    mine, theirs = await asyncio.gather(init(broker), other.take())
    assert mine.producer_id // 1000 != theirs // 1000


async def test_without_zookeeper_clients_ask_again_and_look_for_no_coordinator(
    broker: Broker, replicas: Replicas
) -> None:
    assert (await init(broker)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


async def test_block_that_cannot_be_read_is_told(broker: Broker, replicas: Replicas) -> None:
    replicas.session.znodes[BLOCK] = b"no json", 0
    assert (await init(broker)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("producer_id", "epoch", "code"),
    [
        (-1, -1, ErrorCode.NONE),
        (7, 2, ErrorCode.NONE),
        (7, -1, ErrorCode.INVALID_REQUEST),
        (-1, 2, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_id_and_epoch_of_before_come_together(
    broker: Broker, replicas: Replicas, producer_id: int, epoch: int, code: ErrorCode
) -> None:
    replicas.session.znodes[BLOCK] = b"", 0
    request = InitProducerIdRequest(
        transaction_timeout_ms=1, producer_id=producer_id, producer_epoch=epoch
    )
    answer = await producers.init_producer_id(broker, request, call(4))
    assert answer.error_code == code
    assert answer.producer_epoch == (0 if code is ErrorCode.NONE else -1)


async def test_a_partition_named_twice_gets_no_offset_since_version_1(
    broker: Broker, replicas: Replicas
) -> None:
    await replicas.lead()
    await append(replicas)
    parts = [
        ListOffsetsPartition(partition_index=index, timestamp=-1)
        for index in (KEY.partition, 7, KEY.partition)
    ]
    twice = (ErrorCode.NONE, ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST)
    for version, code in zip((0, 1, 5), twice, strict=True):
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=KEY.topic, partitions=parts)]
        )
        answer = await offsets.list_offsets(broker, request, call(version))
        assert [(one.partition_index, one.error_code) for one in answer.topics[0].partitions] == [
            (KEY.partition, code),
            (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (KEY.partition, code),
        ]


async def test_the_last_deletion_of_a_partition_counts(broker: Broker, replicas: Replicas) -> None:
    await replicas.lead()
    await append(replicas, 5)
    named = [
        DeleteRecordsTopic(
            name=KEY.topic,
            partitions=[DeleteRecordsPartition(partition_index=KEY.partition, offset=offset)],
        )
        for offset in (4, 99, 2)
    ]
    request = DeleteRecordsRequest(timeout_ms=0, topics=named)
    answer = await offsets.delete_records(broker, request, call(2))
    [topic] = answer.topics
    [result] = topic.partitions
    assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 2)
    assert replicas.manager.partitions[KEY].log.log_start_offset == 2
