"""What topic settings, old offsets, big batches and concurrent readers mean for a log."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from odradek.log.partition import old_segments
from odradek.log.partition.appending import UnexpectedOffsetError
from odradek.log.partition.log import Log
from odradek.log.partition.retention import SegmentFacts
from odradek.log.records import batch as codec
from odradek.log.records import compression, records
from odradek.log.records.batch import Header, Origin
from odradek.log.segment.files import FileRetiredError
from odradek.log.segment.segment import Segment
from odradek.properties import read_fields
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.regions import FileRegion
from odradek.topic_config import TopicConfig
from tests.support.logs import START_MS, Partition, batch, read_all, whole_records


def opened(tmp_path: Path, name: str = "topic-0", **config: object) -> tuple[Partition, Log]:
    partition = Partition(tmp_path / name, TopicConfig(**config))  # type: ignore[arg-type]
    return partition, partition.open(clean=True)


def code_of(log: Log, data: bytes) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(data, 0)
    return caught.value.code


def test_log_append_time_dates_records_with_the_brokers_clock(tmp_path: Path) -> None:
    partition, log = opened(tmp_path, message_timestamp_type="LogAppendTime")
    info = log.append_as_leader(batch(b"a", b"b", timestamp=5), 0)
    assert info.append_time_ms == START_MS
    assert [one.timestamp for one in read_all(log)] == [START_MS, START_MS]
    partition.clock.advance(10)
    log.append_as_leader(batch(b"c", timestamp=5), 0)
    found = log.reader.offset_for_timestamp(START_MS + 1)
    assert found is not None
    assert (found.offset, found.timestamp) == (2, START_MS + 10)


def test_compacted_topics_refuse_records_without_key(tmp_path: Path) -> None:
    _, log = opened(tmp_path, cleanup_policy=("compact",))
    assert code_of(log, batch(b"a", key=None)) is ErrorCode.INVALID_RECORD
    assert log.append_as_leader(batch(b"a", key=b""), 0).base_offset == 0


@pytest.mark.parametrize("wanted", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_compression_type_of_the_topic_is_what_is_stored(tmp_path: Path, wanted: str) -> None:
    _, log = opened(tmp_path, compression_type=wanted)
    for number in range(5):
        log.append_as_leader(batch(b"x" * 100, codec=number), 0)
    region = log.reader.read(0, 1 << 20).region
    assert region is not None
    with region:
        stored = {header.codec for _, header in codec.scan(region.read())}
    assert stored == {compression.CODECS[wanted]}
    assert [one.value for one in read_all(log)] == [b"x" * 100] * 5


def test_a_batch_that_the_topics_codec_makes_too_large_is_refused(tmp_path: Path) -> None:
    _, log = opened(tmp_path, compression_type="uncompressed", max_message_bytes=1000)
    assert log.append_as_leader(batch(b"x" * 500, codec=1), 0).base_offset == 0
    assert code_of(log, batch(b"x" * 5000, codec=1)) is ErrorCode.MESSAGE_TOO_LARGE
    assert log.log_end_offset == 1


@pytest.mark.parametrize("number", range(5))
def test_only_a_batch_of_another_codec_than_the_topics_is_for_a_thread(
    tmp_path: Path, number: int
) -> None:
    _, log = opened(tmp_path, compression_type="uncompressed")
    large = batch(os.urandom(5000), codec=number)
    assert (log.append_at_once(large, 0, Origin.COORDINATOR) is None) is (number > 0)


def test_a_batch_over_segment_bytes_is_refused(tmp_path: Path) -> None:
    _, log = opened(tmp_path, segment_bytes=100)
    assert code_of(log, batch(b"x" * 100)) is ErrorCode.RECORD_LIST_TOO_LARGE


def test_segments_roll_by_record_time(tmp_path: Path) -> None:
    _, log = opened(tmp_path, segment_ms=1000)
    for later in (0, 1000, 1001, 1500):
        log.append_as_leader(batch(b"a", timestamp=START_MS + later), 0)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_segment_jitter_ms_rolls_segments_earlier_by_chance(tmp_path: Path) -> None:
    settings = {"segment.ms": "1000", "segment.jitter.ms": "1000"}
    partition, log = opened(tmp_path, **read_fields(TopicConfig, settings))
    for number in range(200):
        partition.clock.advance(1000)
        log.append_as_leader(batch(b"a", timestamp=START_MS + 100 * number), 0)
    bases = [segment.base_offset for segment in log.segments]
    lengths = {after - before for before, after in pairwise(bases)}
    # Without jitter each has the records of a second, and the one after.
    assert max(lengths) <= 11
    assert len(lengths) > 1


@pytest.mark.parametrize(
    ("policy", "bases"),
    [(("compact",), [0, 2]), (("delete", "compact"), [0, 2]), (("delete",), [0])],
)
def test_segments_of_compacted_topics_roll_after_max_compaction_lag(
    tmp_path: Path, policy: tuple[str, ...], bases: list[int]
) -> None:
    """Only then can they be compacted in time."""
    _, log = opened(tmp_path, cleanup_policy=policy, max_compaction_lag_ms=1000)
    for later in (0, 1000, 1001, 1500):
        log.append_as_leader(batch(b"a", timestamp=START_MS + later), 0)
    assert [segment.base_offset for segment in log.segments] == bases


def test_segments_roll_by_record_time_at_most_once_per_second(tmp_path: Path) -> None:
    partition, log = opened(tmp_path, segment_ms=1000)

    def append(count: int) -> None:
        for _ in range(count):
            later = log.log_end_offset * 7 * 24 * 3_600_000
            log.append_as_leader(batch(b"a", timestamp=START_MS + later), 0)

    append(100)
    assert [segment.base_offset for segment in log.segments] == [0, 1]
    partition.clock.advance(999)
    append(1)
    assert len(log.segments) == 2
    partition.clock.advance(1)
    append(100)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 101]
    assert len(read_all(log)) == 201


def test_segments_roll_by_size_as_often_as_they_are_full(tmp_path: Path) -> None:
    _, log = opened(tmp_path, segment_ms=1000, segment_bytes=100)
    for later in range(9):
        log.append_as_leader(batch(b"a", timestamp=START_MS + later * 10_000), 0)
    assert len(log.segments) == 9


def test_segments_roll_when_an_index_is_full(tmp_path: Path) -> None:
    _, log = opened(tmp_path, segment_index_bytes=24, index_interval_bytes=1)
    for later in range(9):
        log.append_as_leader(batch(b"a", timestamp=START_MS + later), 0)
    assert len(log.segments) > 2
    assert len(read_all(log)) == 9
    for segment in log.segments[:-1]:
        assert os.stat(segment.index.file.path).st_size <= 24


def test_the_index_of_the_open_segment_is_preallocated_and_trimmed_at_the_end(
    tmp_path: Path,
) -> None:
    partition, log = opened(tmp_path, segment_index_bytes=8192, index_interval_bytes=1)
    for _ in range(300):
        log.append_as_leader(batch(b"a"), 0)
    path = log.segments.active.index.file.path
    log.flush()
    assert os.stat(path).st_size == 8192
    partition.close(log)
    assert os.stat(path).st_size == 299 * 8


def test_a_preallocated_segment_has_its_full_length_until_it_is_finished(tmp_path: Path) -> None:
    config = TopicConfig(preallocate=True, segment_bytes=4000)
    partition = Partition(tmp_path / "topic-0", config)
    log = partition.open(clean=True)
    path = Path(log.segments.active.log.path)
    assert path.stat().st_size == 4000
    for number in range(5):
        log.append_as_leader(batch(b"value %d" % number), 0)
    whole = read_all(log)
    assert path.stat().st_size == 4000
    partition.crash(log)
    log = partition.open(clean=False)
    assert read_all(log) == whole
    assert path.stat().st_size == log.segments.size
    log.roll()
    second = Path(log.segments.active.log.path)
    assert second.stat().st_size == 4000
    log.append_as_leader(batch(b"last"), 0)
    size = log.segments.active.size
    partition.close(log)
    assert second.stat().st_size == size
    assert len(read_all(partition.open(clean=True))) == 6


def test_a_follower_whose_start_lies_inside_a_batch_takes_it_whole(tmp_path: Path) -> None:
    _, leader = opened(tmp_path)
    leader.append_as_leader(batch(b"a", b"b", b"c"), 0)
    leader.append_as_leader(batch(b"d"), 0)
    _, follower = opened(tmp_path, "other-0")
    follower.truncate_fully_and_start_at(2)
    region = leader.reader.read(2, 1 << 20).region
    assert region is not None
    with region:
        follower.append_as_follower(region.read())
    assert (follower.log_start_offset, follower.log_end_offset) == (2, 4)
    assert [one.value for one in read_all(follower)] == [b"c", b"d"]


def test_a_follower_refuses_batches_below_its_end(tmp_path: Path) -> None:
    _, log = opened(tmp_path)
    log.append_as_leader(batch(b"a", b"b"), 0)
    with pytest.raises(UnexpectedOffsetError):
        log.append_as_follower(batch(b"x"))
    assert len(read_all(log)) == 2


def test_a_follower_takes_nothing_from_a_damaged_answer(tmp_path: Path) -> None:
    _, log = opened(tmp_path)
    whole = batch(b"a")
    parts = codec.stamp(batch(b"b"), codec.parse(batch(b"b")), 1, 0)
    second = bytearray(b"".join(parts))
    second[-1] ^= 1
    with pytest.raises(KafkaError) as caught:
        log.append_as_follower(whole + bytes(second))
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.log_end_offset == 0


def test_the_first_batch_goes_out_whole_only_when_asked(tmp_path: Path) -> None:
    _, log = opened(tmp_path)
    size = log.append_as_leader(batch(b"x" * 500), 0).size
    assert log.reader.read(0, 10).length == size
    assert log.reader.read(0, 10, min_one=False).length == 10
    assert log.reader.read(0, 0, min_one=False).region is None


@pytest.mark.parametrize("offset", [-1, 3, 100])
def test_offsets_outside_the_log_are_out_of_range(tmp_path: Path, offset: int) -> None:
    _, log = opened(tmp_path)
    log.append_as_leader(batch(b"a", b"b"), 0)
    assert log.reader.read(2, 100).region is None
    with pytest.raises(KafkaError) as caught:
        log.reader.read(offset, 100)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_region_is_what_the_protocol_takes_for_one(tmp_path: Path) -> None:
    _, log = opened(tmp_path)
    log.append_as_leader(batch(b"a"), 0)
    region = log.reader.read(0, 100).region
    assert isinstance(region, FileRegion)
    region.close()
    region.close()


@pytest.mark.parametrize("limit", [-1, -2, -(2**63)])
def test_no_size_below_zero_limits_a_log(tmp_path: Path, limit: int) -> None:
    _, log = opened(tmp_path, segment_bytes=200, retention_bytes=limit)
    for _ in range(6):
        log.append_as_leader(batch(b"x" * 50), 0)
    log.high_watermark = log.log_end_offset
    assert log.apply_retention() == 0


def test_a_region_outlives_retention(tmp_path: Path) -> None:
    _, log = opened(tmp_path, segment_bytes=200, retention_bytes=0, file_delete_delay_ms=0)
    for number in range(6):
        log.append_as_leader(batch(b"%d" % number * 50), 0)
    region = log.reader.read(0, 1 << 20).region
    assert region is not None
    log.high_watermark = log.log_end_offset
    assert log.apply_retention() > 2
    log.delete_due()
    assert whole_records(region.read())[0].offset == 0
    region.close()
    assert not list(Path(log.directory).glob("*.deleted"))


def test_age_of_a_segment_that_goes_meanwhile_is_not_asked_of_its_path(tmp_path: Path) -> None:
    partition, log = opened(tmp_path, segment_bytes=200, retention_ms=1000)
    for _ in range(6):
        log.append_as_leader(batch(b"x" * 50, timestamp=-1), 0)
    old, *_ = log.segments
    log.truncate_fully_and_start_at(500)
    with pytest.raises(FileRetiredError):
        old.newest_or_modified_ms()
    assert partition.failures == []


def test_reader_of_a_segment_that_is_being_renamed_makes_no_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, log = opened(tmp_path, segment_bytes=200, retention_bytes=0)
    for _ in range(6):
        log.append_as_leader(batch(b"x" * 50), 0)
    log.high_watermark = log.log_end_offset
    old, *_ = log.segments
    for _ in range(2):
        log.release_idle()
    rename, path = os.replace, old.log.path

    def read_meanwhile(source: str, target: str) -> None:
        rename(source, target)
        if source == path:
            with contextlib.suppress(FileRetiredError):
                old.read(0, 1)

    monkeypatch.setattr(os, "replace", read_meanwhile)
    assert log.apply_retention()
    left = {path.name for path in Path(log.directory).glob("*.log")}
    assert left == {os.path.basename(segment.log.path) for segment in log.segments}


def test_descriptors_of_idle_segments_are_given_back_and_reopened(tmp_path: Path) -> None:
    _, log = opened(tmp_path, segment_bytes=200)
    for number in range(20):
        log.append_as_leader(batch(b"%d" % number * 50), 0)
    assert len(read_all(log)) == 20
    before = len(os.listdir("/proc/self/fd"))
    log.release_idle()
    log.release_idle()
    assert len(os.listdir("/proc/self/fd")) < before - 10
    assert len(read_all(log)) == 20


def test_deletion_by_time_spares_what_was_written_and_rolled_while_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, log = opened(tmp_path, segment_bytes=200, retention_ms=1000)
    log.append_as_leader(batch(b"x" * 20, timestamp=START_MS), 0)
    partition.clock.advance(5000)
    look = old_segments._facts_of_last

    def look_before_a_roll(segment: Segment) -> SegmentFacts:
        found = look(segment)
        monkeypatch.setattr(old_segments, "_facts_of_last", look)
        while len(log.segments) == 1:
            log.append_as_leader(batch(b"new", timestamp=START_MS + 5000), 0)
        log.high_watermark = log.log_end_offset
        return found

    monkeypatch.setattr(old_segments, "_facts_of_last", look_before_a_roll)
    assert log.apply_retention() == 0
    assert log.log_start_offset == 0


def test_deletion_by_time_spares_young_and_unreplicated_segments(tmp_path: Path) -> None:
    partition, log = opened(tmp_path, segment_bytes=100, retention_ms=1000)
    for later in (0, 100, 5000):
        log.append_as_leader(batch(b"x" * 20, timestamp=START_MS + later), 0)
    log.high_watermark = 1
    partition.clock.advance(3000)
    assert log.apply_retention() == 1
    log.high_watermark = 3
    assert log.apply_retention() == 1
    assert log.log_start_offset == 2
    partition.clock.advance(10_000)
    assert log.apply_retention() == 1
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    assert log.append_as_leader(batch(b"next"), 0).base_offset == 3


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(-1, (-1, -1)), (0, (0, 2)), (2, (2, 4)), (3, (2, 4)), (5, (5, 6)), (6, (-1, -1))],
)
def test_epoch_ends_are_kafkas(tmp_path: Path, asked: int, answer: tuple[int, int]) -> None:
    partition, log = opened(tmp_path)
    for epoch in (0, 0, 2, 2, 5, 5):
        log.append_as_leader(batch(b"a"), epoch)
    assert log.end_offset_for_epoch(asked) == answer
    partition.close(log)
    assert partition.open(clean=True).end_offset_for_epoch(asked) == answer


def test_an_epoch_without_records_is_known(tmp_path: Path) -> None:
    _, log = opened(tmp_path)
    log.append_as_leader(batch(b"a"), 1)
    log.assign_epoch(4)
    assert log.end_offset_for_epoch(4) == (4, 1)
    assert log.end_offset_for_epoch(2) == (1, 1)


def test_truncation_at_the_log_end_takes_an_epoch_without_records(tmp_path: Path) -> None:
    _, log = opened(tmp_path)
    log.append_as_leader(batch(b"a"), 1)
    log.assign_epoch(4)
    assert not log.truncate_to(1)
    assert log.epochs.entries == [(1, 0)]


def test_readers_never_see_torn_or_unordered_batches_while_the_log_moves(tmp_path: Path) -> None:
    """One writer appends, rolls, retains and truncates; readers check each byte they are given."""
    _, log = opened(tmp_path, segment_bytes=4000, retention_bytes=20_000)
    wrong: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        offset = 0
        while not done.is_set():
            try:
                piece = log.reader.read(offset, 3000, log.high_watermark)
                if piece.region is None:
                    offset = log.log_start_offset
                    continue
                with piece.region as region:
                    found = whole_records(region.read())
                assert found
                assert found[0].offset <= offset
                numbers = [record.offset for record in found]
                assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
                offset = found[-1].offset + 1
            except KafkaError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    wrong.append(error)
                    return
                offset = log.log_start_offset
            except BaseException as error:
                wrong.append(error)
                return

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1500):
        log.append_as_leader(batch(*[b"%d" % number] * (number % 7 + 1)), number // 100)
        if number % 5 == 0:
            log.high_watermark = log.log_end_offset
        if number % 100 == 99:
            log.truncate_to(max(log.high_watermark, log.log_end_offset - 3))
            log.apply_retention()
            log.delete_due()
            log.release_idle()
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def test_magic_2_batches_made_here_decode_with_gaps(tmp_path: Path) -> None:
    """Compaction leaves gaps between offsets; a reader at a gap gets what follows."""
    _, log = opened(tmp_path, segment_bytes=300)
    for offset in (0, 10, 25, 40, 41):
        log.append_as_follower(records.make([(b"k", b"v" * 60)], START_MS, base_offset=offset))
    for asked, first in ((0, 0), (1, 10), (10, 10), (24, 25), (26, 40), (41, 41)):
        assert read_all(log, asked)[0].offset == first
    log.release_idle()
    assert log.reader.read(26, 1 << 20, 40).region is None


def test_lookup_by_time_beside_the_first_append_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, log = opened(tmp_path)
    log.append_as_leader(batch(b"old"), 0)
    partition.close(log)
    log = partition.open(clean=True)
    scanned, go_on = threading.Event(), threading.Event()
    scan = Segment.scan

    def held_up(segment: Segment, *arguments: int) -> Iterator[tuple[int, Header]]:
        yield from scan(segment, *arguments)
        if threading.current_thread() is reader:
            scanned.set()
            assert go_on.wait(60)

    monkeypatch.setattr(Segment, "scan", held_up)
    newer = batch(b"new", timestamp=START_MS + 1000)
    reader = threading.Thread(target=log.reader.offset_for_timestamp, args=(START_MS + 1000,))
    writer = threading.Thread(target=log.append_as_leader, args=(newer, 0))
    reader.start()
    assert scanned.wait(60)
    writer.start()
    writer.join(0.2)  # it either waits for the reader or is done
    go_on.set()
    reader.join()
    writer.join()
    found = log.reader.offset_for_timestamp(START_MS + 1000)
    assert found is not None
    assert found.offset == 1


def test_indexes_are_looked_through_once_though_two_ask_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition, log = opened(tmp_path)
    log.append_as_leader(batch(b"a"), 0)
    log.roll()  # the newest segment is looked through when it is opened
    partition.close(log)
    log = partition.open(clean=True)
    began, go_on = threading.Event(), threading.Event()
    looks: list[int] = []
    check = Segment._check_indexes

    def held_up(segment: Segment) -> None:
        looks.append(threading.get_ident())
        began.set()
        assert go_on.wait(60)
        check(segment)

    monkeypatch.setattr(Segment, "_check_indexes", held_up)
    askers = [threading.Thread(target=log.segments[0].next_offset) for _ in range(2)]
    askers[0].start()
    assert began.wait(60)
    askers[1].start()
    askers[1].join(0.2)  # it comes to wait for the first
    go_on.set()
    for one in askers:
        one.join()
    assert len(looks) == 1
