"""After a crash the indexes of closed segments are files that Kafka, too, may take as they are."""

from __future__ import annotations

from pathlib import Path

from odradek.topic_config import TopicConfig
from tests.support.logs import START_MS, Partition, batch

CONFIG = TopicConfig(segment_bytes=1500, index_interval_bytes=200, segment_index_bytes=8000)


def test_indexes_of_closed_segments_are_finished_by_recovery(tmp_path: Path) -> None:
    partition = Partition(tmp_path / "topic-0", CONFIG)
    log = partition.open(clean=True)
    for number in range(40):
        log.append_as_leader(batch(bytes(100), timestamp=START_MS + number), 0)
    partition.close(log)
    kinds = ("*.index", "*.timeindex")
    closed = [path for kind in kinds for path in sorted(partition.folder.glob(kind))[:-1]]
    assert len(closed) > 6
    finished = {path: path.read_bytes() for path in closed}
    assert all(finished.values())

    partition.recovery_point = 0
    log = partition.open(clean=False)
    assert partition.report is not None
    assert partition.report.scanned_segments == len(closed) // 2 + 1
    partition.crash(log)
    assert {path: path.read_bytes() for path in closed} == finished
