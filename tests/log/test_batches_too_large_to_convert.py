"""Batches that unpack to more than the limit, for consumers that know older formats only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.log.partition import conversion
from odradek.log.partition.reading import LogReader
from odradek.log.records import compression, legacy, records
from odradek.log.records.records import BatchOptions, Record
from odradek.log.segment.files import Region, SharedFile
from odradek.protocol.errors import ErrorCode, KafkaError
from tests.support.logs import START_MS

NO_READER: LogReader = None  # type: ignore[assignment]


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    """A small batch, and one that gzip makes a thousandth of."""
    small = records.encode([Record(0, START_MS, b"k", b"v")])
    value = bytes(records.DEFAULT_LIMIT + 1)
    gzip = BatchOptions(codec=compression.GZIP)
    large = records.encode([Record(1, START_MS, None, value)], gzip)
    assert len(large) < 1 << 20
    path = tmp_path / "log"
    path.write_bytes(small + large)
    file = SharedFile(str(path), read_only=True)
    yield Region(file, 0, len(small) + len(large))
    file.retire()


def test_they_are_refused_as_sound_but_not_to_be_had(region: Region) -> None:
    piece = conversion.read_as_message_set(NO_READER, region, 0, None, 1, 1 << 20)
    assert [one.value for one in legacy.decode(piece)] == [b"v"], "what comes before is served"
    region.position, region.length = len(piece_of_first(region)), 1 << 20
    with pytest.raises(KafkaError) as caught:
        conversion.read_as_message_set(NO_READER, region, 1, None, 1, 1 << 20)
    assert caught.value.code is ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def piece_of_first(region: Region) -> memoryview:
    return next(data for data, _ in conversion._batches(region))
