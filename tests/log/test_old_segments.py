"""Logs that hold the formats before 0.11: written by an old Kafka, or by this broker for a topic of
an old message.format.version (L4, L5).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.log.partition import cleaner
from odradek.log.partition.log import Log
from odradek.log.records import batch as batches
from odradek.log.records import compression, contents, legacy, records
from odradek.log.records.records import BatchOptions, Record
from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.topic_config import TopicConfig
from tests.support.logs import START_MS, Partition

CODECS = (compression.NONE, compression.GZIP, compression.SNAPPY, compression.LZ4)
CONFIG = TopicConfig(
    cleanup_policy=("compact",),
    segment_bytes=900,
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0.1,
    file_delete_delay_ms=0,
)


def read_all(log: Log, offset: int | None = None) -> list[Record]:
    """Every record from an offset on, whatever its format, read as consumers do."""
    found: list[Record] = []
    offset = log.log_start_offset if offset is None else offset
    while True:
        piece = log.reader.read(offset, 1 << 20)
        if piece.region is None:
            return found
        with piece.region as region:
            data = region.read()
        for position, header in batches.scan(data):
            batches.check_crc(data, position, header)
            found += [one for one in contents.decode(data, position) if one.offset >= offset]
            last = header.last_offset
        offset = last + 1


class Shape:
    """A log of mixed formats, and what it must hold."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.written: list[Record] = []

    def add(
        self, magic: int, codec: int, pairs: Sequence[tuple[bytes | None, bytes | None]]
    ) -> None:
        """Append as a follower does: exactly these bytes."""
        log = self.log
        base = log.log_end_offset
        found = [
            Record(base + at, START_MS + base + at if magic else -1, key, value)
            for at, (key, value) in enumerate(pairs)
        ]
        if magic == 2:
            data = records.encode(found, BatchOptions(codec=codec, leader_epoch=1))
        else:
            data = legacy.encode(found, magic, codec)
        log.append_as_follower(data)
        log.high_watermark = log.log_end_offset
        self.written += found


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(CODECS),
        st.lists(
            st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.binary(min_size=1, max_size=99)),
            min_size=1,
            max_size=5,
        ),
    ),
    min_size=3,
    max_size=25,
)


def fill(log: Log, steps: list[tuple[int, int, list[tuple[bytes, bytes]]]]) -> list[Record]:
    shape = Shape(log)
    for magic, codec, pairs in sorted(steps, key=lambda step: step[0]):
        shape.add(magic, codec, pairs)
    return shape.written


@settings(max_examples=10, deadline=None)
@given(STEPS)
def test_every_offset_and_time_is_found_before_and_after_a_restart(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int, list[tuple[bytes, bytes]]]],
) -> None:
    partition = Partition(tmp_path_factory.mktemp("log") / "topic-0", CONFIG)
    log = partition.open(clean=True)
    written = fill(log, steps)
    for restart in (None, True, False):
        if restart is not None:
            (partition.close if restart else partition.crash)(log)
            for path in partition.folder.glob("*.*index"):
                if not restart:
                    path.unlink()
            log = partition.open(clean=restart)
        assert log.log_end_offset == len(written)
        for offset in range(len(written) + 1):
            assert read_all(log, offset) == written[offset:]
        for one in written:
            if one.timestamp >= 0:
                at = log.reader.offset_for_timestamp(one.timestamp)
                assert at is not None
                assert (at.offset, at.timestamp) == (one.offset, one.timestamp)
    log.abandon()


@settings(max_examples=10, deadline=None)
@given(STEPS)
def test_compaction_keeps_the_newest_of_each_key_and_every_format(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int, list[tuple[bytes, bytes]]]],
) -> None:
    partition = Partition(tmp_path_factory.mktemp("log") / "topic-0", CONFIG)
    log = partition.open(clean=True)
    written = fill(log, steps)
    formats = {one.offset: formats_of(log)[one.offset] for one in written}
    log.roll()
    end = cleaner.clean(log, cleaner.dirty_range(log, 0, START_MS), 1000, cleaner.Throttle())
    newest = {one.key: one.offset for one in written if one.offset < end}
    left = [one for one in written if one.offset >= end or newest[one.key] == one.offset]
    for clean in (True, False):
        assert read_all(log) == left
        assert formats_of(log) == {one.offset: formats[one.offset] for one in left}
        (partition.close if clean else partition.crash)(log)
        log = partition.open(clean=clean)
    log.abandon()


def formats_of(log: Log) -> dict[int, tuple[int, int]]:
    """Magic and codec of each record, by offset."""
    found: dict[int, tuple[int, int]] = {}
    for segment in log.segments:
        for position, header in segment.scan(0):
            data = segment.read(position, header.size)
            for one in contents.decode(data):
                found[one.offset] = header.magic, header.codec
    return found


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return Partition(tmp_path / "topic-0", replace(CONFIG, segment_bytes=1 << 20))


@pytest.mark.parametrize("magic", [0, 1])
def test_a_cut_inside_a_wrapper_takes_the_whole_wrapper(partition: Partition, magic: int) -> None:
    log = partition.open(clean=True)
    shape = Shape(log)
    for _ in range(3):
        shape.add(magic, compression.GZIP, [(b"k", b"v")] * 5)
    log.truncate_to(12)
    assert log.log_end_offset == 10
    assert read_all(log) == shape.written[:10]
    log.abandon()


def test_a_torn_message_is_cut_off(partition: Partition) -> None:
    log = partition.open(clean=True)
    shape = Shape(log)
    for codec in (compression.NONE, compression.GZIP):
        shape.add(1, codec, [(b"k", b"v" * 30)] * 3)
    path = log.segments.active.log.path
    log.abandon()
    whole = Path(path).read_bytes()
    for cut in range(1, len(whole) - 1, 7):
        os.truncate(path, cut)
        partition.recovery_point = 0
        log = partition.open(clean=False)
        found = read_all(log)
        assert found == shape.written[: len(found)]
        assert log.log_end_offset == len(found)
        log.abandon()
        Path(path).write_bytes(whole)


def test_dump_shows_old_messages_and_verify_finds_them_sound(partition: Partition) -> None:
    log = partition.open(clean=True)
    shape = Shape(log)
    shape.add(0, compression.NONE, [(b"plain", b"x")])
    shape.add(0, compression.LZ4, [(b"zero", b"x"), (b"zero", b"y")])
    shape.add(1, compression.GZIP, [(b"one", b"x")] * 3)
    partition.close(log)

    def says(*arguments: str) -> str:
        command = [sys.executable, "-m", "odradek", "log", *arguments, str(partition.folder)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    said = says("dump", "--records")
    assert "offsets 1..2 " in said
    assert "records 3 epoch -1 magic 1 codec gzip" in said
    assert f"    5 {START_MS + 5} key b'one' value b'x'" in said
    assert "    2 -1 key b'zero' value b'y'" in said
    assert says("verify") == "sound\n"


# -- topics of an old message.format.version ------------------------------------------------------


def put(log: Log, codec: int = 0, count: int = 3, **options: Any) -> list[Record]:
    """Append a batch as a client; what must be there then."""
    base = log.log_end_offset
    found = [Record(at, START_MS + at, b"k%d" % at, b"v") for at in range(count)]
    info = log.append_as_leader(records.encode(found, BatchOptions(codec=codec, **options)), 3)
    assert (info.base_offset, info.last_offset) == (base, base + count - 1)
    return [replace(one, offset=base + one.offset) for one in found]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("version", "magic"), [("0.9.0", 0), ("0.10.2", 1)])
@pytest.mark.parametrize("stamps", [False, True])
def test_a_topic_of_an_old_format_stores_it(
    partition: Partition, version: str, magic: int, codec: int, stamps: bool
) -> None:
    partition.config = replace(
        partition.config,
        message_format_version=version,
        message_timestamp_type="LogAppendTime" if stamps else "CreateTime",
        segment_bytes=400,
    )
    log = partition.open(clean=True)
    partition.clock.advance(50)
    written = [one for _ in range(5) for one in put(log, codec)]
    time: dict[str, Any] = {"timestamp": START_MS + 50} if stamps else {}
    expected = [
        replace(one, **(dict[str, Any](timestamp=-1) if magic == 0 else time)) for one in written
    ]
    assert read_all(log) == expected
    assert set(formats_of(log).values()) == {(magic, codec)}
    assert len(log.segments) > 1
    assert [read_all(log, at) for at in range(16)] == [expected[at:] for at in range(16)]
    partition.close(log)
    assert read_all(partition.open(clean=True)) == expected


def test_what_an_old_format_cannot_say_is_refused_and_not_written(partition: Partition) -> None:
    partition.config = replace(partition.config, message_format_version="0.10.2")
    log = partition.open(clean=True)
    with pytest.raises(KafkaError) as caught:
        put(log, producer_id=5, producer_epoch=0, base_sequence=0)
    assert caught.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert log.log_end_offset == 0


def test_only_single_messages_are_measured_where_they_are_stored_singly(
    partition: Partition,
) -> None:
    partition.config = replace(
        partition.config, message_format_version="0.10.2", max_message_bytes=100
    )
    log = partition.open(clean=True)
    found = [Record(at, START_MS, b"k%d" % at, b"v" * 50) for at in range(9)]
    assert log.append_as_leader(records.encode(found), 0).last_offset == 8
    for codec, size in ((compression.NONE, 100), (compression.LZ4, 50)):
        varied = [replace(one, value=bytes(range(at := one.offset, at + size))) for one in found]
        data = records.encode(varied, BatchOptions(codec=codec))
        with pytest.raises(KafkaError) as caught:
            log.append_as_leader(data, 0)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert log.log_end_offset == 9


def test_a_set_that_grows_over_a_segment_is_refused(partition: Partition) -> None:
    # An old message has 34 bytes around its content, a record as few as 7.
    found = [Record(at, START_MS, b"k", b"v") for at in range(100)]
    partition.config = replace(
        partition.config, message_format_version="0.10.2", segment_bytes=2000
    )
    log = partition.open(clean=True)
    with pytest.raises(KafkaError) as caught:
        log.append_as_leader(records.encode(found), 0)
    assert caught.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.log_end_offset == 0


def test_batches_of_an_old_format_end_what_is_known_of_epochs(partition: Partition) -> None:
    new = partition.config
    log = partition.open(clean=True)
    put(log)
    assert log.epochs.entries == [(3, 0)]
    log.config = partition.config = replace(new, message_format_version="0.10.2")
    log.assign_epoch(4)
    assert log.epochs.entries == [(3, 0)], "nothing was written yet"
    put(log)
    assert log.epochs.entries == []
    for clean in (True, False):
        (partition.close if clean else partition.crash)(log)
        log = partition.open(clean=clean)
        assert log.epochs.entries == []
        assert partition.report is not None
        assert partition.report.rebuilt == []
    log.config = partition.config = new
    put(log)
    assert log.epochs.entries == [(3, 6)]
    partition.close(log)
    Path(log.epochs.path).unlink()
    log = partition.open(clean=True)
    assert log.epochs.entries == [(3, 6)], "as the batches tell"


def test_epochs_of_a_topic_of_an_old_format_are_not_believed(partition: Partition) -> None:
    log = partition.open(clean=True)
    put(log)
    partition.close(log)
    partition.config = replace(partition.config, message_format_version="0.10.2")
    assert partition.open(clean=True).epochs.entries == []
