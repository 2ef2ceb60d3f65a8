"""Apache Kafka's DumpLogSegments reads this log's files and finds nothing wrong (L1, L4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.log.records import records
from odradek.log.records.records import BatchOptions, Record
from odradek.topic_config import TopicConfig
from tests.support.kafka_peer import Tools
from tests.support.logs import START_MS, Partition

BATCHES = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition with every codec, keys, headers, nulls, producers and several segments."""
    path = tmp_path_factory.mktemp("kafka") / "topic-0"
    partition = Partition(path, TopicConfig(segment_bytes=20_000, index_interval_bytes=500))
    log = partition.open(clean=True)
    for number in range(BATCHES):
        found = [
            Record(
                place,
                START_MS + number * 7919 % 5000 + place,
                None if place == 1 else b"key%d" % number,
                None if place == 2 else b"v" * (number % 200),
                (("name", b"value"), ("empty", None)),
            )
            for place in range(3)
        ]
        options = BatchOptions(
            codec=number % 5, producer_id=7, producer_epoch=1, base_sequence=number * 3
        )
        log.append_as_leader(records.encode(found, options), number // 100)
    partition.close(log)
    return path


def kafka_says(tools: Tools, folder: Path, suffix: str, *options: str) -> list[str]:
    files = ",".join(str(path) for path in sorted(folder.glob("*" + suffix)))
    said = tools.run("kafka.tools.DumpLogSegments", "--files", files, *options)
    assert "Exception" not in said
    return said.splitlines()


def test_every_record_is_read_and_valid(tools: Tools, folder: Path) -> None:
    lines = kafka_says(tools, folder, ".log", "--deep-iteration", "--print-data-log")
    found = [line for line in lines if line.startswith("| offset: ")]
    assert [int(line.split()[2]) for line in found] == list(range(BATCHES * 3))
    assert all("isValid: true" in line and "headerKeys: [name,empty]" in line for line in found)
    assert not [line for line in lines if "isvalid: false" in line.lower()]
    batches = [line for line in lines if line.startswith("baseOffset: ")]
    assert len(batches) == BATCHES
    assert {line.split("compresscodec: ")[1].split()[0] for line in batches} == {
        "NONE", "GZIP", "SNAPPY", "LZ4", "ZSTD",
    }  # fmt: skip


def test_offset_indexes_pass_the_sanity_check(tools: Tools, folder: Path) -> None:
    lines = kafka_says(tools, folder, ".index", "--index-sanity-check")
    assert len([line for line in lines if line.endswith("passed sanity check.")]) > 2


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_index_entries_agree_with_the_log(tools: Tools, folder: Path, suffix: str) -> None:
    lines = kafka_says(tools, folder, suffix, "--verify-index-only")
    unexpected = [line for line in lines if line and not line.startswith("Dumping ")]
    assert unexpected == []


def test_producer_snapshots_are_read(tools: Tools, folder: Path) -> None:
    lines = kafka_says(tools, folder, ".snapshot")
    last = [line for line in lines if line.startswith("producerId: 7 ")][-1]
    assert "producerEpoch: 1 " in last
    assert f"lastSequence: {BATCHES * 3 - 1} lastOffset: {BATCHES * 3 - 1} " in last
