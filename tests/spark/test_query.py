"""Decisions of a query before Spark runs it, with fakes that record calls."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from odradek.values import TopicPartition
from odradek.zk.consumers import TopicIncarnation
from odradek_spark import config, offsets
from odradek_spark.errors import JobError, JobStalledError
from odradek_spark.group_znodes import TopicRecord
from odradek_spark.query import Query
from odradek_spark.sinks.parquet_store import ParquetStore
from odradek_spark.storage import LocalFolder
from tests.support.spark_checkpoint import checkpoint
from tests.support.spark_job import local_job

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeMembership:
    """A membership with the given offsets in one topic, which records commits."""

    topics = ("t",)
    epoch = 1
    incarnation = TopicIncarnation(7, None, 2)

    def __init__(self, stored: Mapping[TopicPartition, int]) -> None:
        self.stored = dict(stored)
        self.commits: list[dict[TopicPartition, int]] = []

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {part: offset for part, offset in self.stored.items() if part in partitions}

    def commit(self, ends: Mapping[TopicPartition, int], _: float) -> None:
        self.commits.append(dict(ends))
        self.stored.update(ends)

    def incarnations(self, topics: Iterable[str]) -> dict[str, TopicIncarnation]:
        return dict.fromkeys(topics, self.incarnation)

    def topic_records(self, topics: Iterable[str]) -> dict[str, TopicRecord]:
        return dict.fromkeys(topics, TopicRecord(self.incarnation, 8))

    def last_reset_zxid(self) -> int:
        return 0

    def stored_partitions(self, _: str) -> set[TopicPartition]:
        return {*self.stored}

    def record_topics(self, *nothing: Collection[object]) -> None:
        assert not any(nothing)


class FakeClient:
    """A client of logs that have their first hundred records, but for those before `begins`."""

    def __init__(self) -> None:
        self.begins: dict[TopicPartition, int] = {}

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {part: self.begins.get(part, 0) for part in partitions}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 100)

    def initial_offsets(
        self, partitions: Iterable[TopicPartition], _: str | int
    ) -> dict[TopicPartition, int]:
        return self.start_offsets(partitions)


class Runs(Query):
    """A query whose batches never end; a signal arrives during the first one."""

    def __init__(
        self,
        folder: Path,
        member: FakeMembership,
        out: Path | None = None,
        sink: config.Sink | None = None,
    ) -> None:
        self.stop = threading.Event()
        self.runs: list[dict[TopicPartition, int]] = []
        anything = cast(Any, None)
        self.logs = FakeClient()
        super().__init__(
            replace(local_job(), sink=sink or config.ParquetSink(str(out or folder / "out"))),
            LocalFolder(folder),
            anything,
            cast(Any, member),
            cast(Any, self.logs),
            anything,
            self.stop,
        )

    def _run(self, starts: Mapping[TopicPartition, int], **_: object) -> None:
        self.runs.append(dict(starts))

    def await_end(self, seconds: int) -> bool:
        """Return False, and stop."""
        self.stop.set()
        return False


def test_batch_that_is_repeated_for_its_state_stays_open_when_a_signal_comes(
    tmp_path: Path,
) -> None:
    folder = checkpoint(tmp_path, [{"0": 5}, {"0": 9}], finished=1)
    (folder / "state" / "0").mkdir(parents=True)
    member = FakeMembership({T0: 7})
    query = Runs(folder, member)
    query.start({T0})
    assert query.runs == [{T0: 9}]
    assert member.commits == []
    assert offsets.progress(LocalFolder(folder)) == offsets.CheckpointProgress(
        1, {T0: 9}, pending=True, starts={T0: 5}
    )


@pytest.mark.parametrize("reset_to", [0, 9])
def test_reset_is_heeded_while_the_first_batch_is_open(tmp_path: Path, reset_to: int) -> None:
    folder = checkpoint(tmp_path, [{"0": 9}], finished=0, start={"0": 4})
    query = Runs(folder, FakeMembership({T0: reset_to}))
    query.start({T0})
    assert query.runs == [{T0: reset_to}]
    assert offsets.progress(LocalFolder(folder)) == offsets.CheckpointProgress(0, {T0: reset_to})


def test_query_that_goes_on_lets_the_member_know_the_offsets(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, [{"0": 5, "1": 2}], finished=1)
    member = FakeMembership({T0: 5})
    query = Runs(folder, member)
    query.start({T0, T1})
    assert member.commits == [{T0: 5, T1: 2}]
    assert query.runs == [{T0: 5, T1: 2}]


def test_batch_of_one_s_own_is_finished_before_partitions_that_came_along(tmp_path: Path) -> None:
    """The driver died between write and commit, and the topic grew before the next one began."""
    folder = checkpoint(tmp_path, [{"0": 5}, {"0": 9}], finished=1)
    member = FakeMembership({T0: 5})
    query = Runs(folder, member)
    query.start({T0, T1})
    assert query.runs == [{T0: 9}]
    assert member.commits == []
    progress = offsets.progress(LocalFolder(folder))
    assert progress is not None
    assert progress.pending


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("written", [False, True])
def test_records_that_are_gone_are_missed_unless_the_sink_has_their_batch(
    tmp_path: Path, written: bool, stateful: bool
) -> None:
    """The driver died before it committed, and a log got shorter before the next one began."""
    folder = checkpoint(tmp_path / "checkpoint", [{"0": 5, "1": 5}, {"0": 9, "1": 9}], finished=1)
    (folder / "metadata").write_text('{"id": "q"}')
    if stateful:
        (folder / "state" / "0").mkdir(parents=True)
    out = tmp_path / "out"
    store = ParquetStore(out, "append", "q", 1)
    for number in range(2 if written else 1):
        store.finish(store.begin(number))
    member = FakeMembership({T0: 5, T1: 5})
    query = Runs(folder, member, out)
    query.logs.begins[T1] = 7
    if not written:
        with pytest.raises(JobStalledError, match=r"DataTruncated: .*2 records are gone"):
            query.start({T0, T1})
        assert (query.runs, member.commits) == ([], [])
        return
    query.start({T0, T1})
    assert query.runs == [{T0: 9, T1: 9}]
    assert member.stored == {T0: 9, T1: 9}
    assert offsets.progress(LocalFolder(folder)) == offsets.CheckpointProgress(1, {T0: 9, T1: 9})


class Deleted(FakeMembership):
    """A group whose topic `gone` somebody deleted."""

    def incarnations(self, topics: Iterable[str]) -> dict[str, TopicIncarnation]:
        return super().incarnations(topic for topic in topics if topic != "gone")


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("written", [False, True])
def test_batch_in_the_sink_does_not_come_again_because_one_of_its_topics_is_gone(
    tmp_path: Path, written: bool, stateful: bool
) -> None:
    """The driver died before it committed a batch over two topics that match a pattern."""
    folder = checkpoint(tmp_path / "checkpoint", [{"0": 5}, {"0": 9}], finished=1)
    for number in range(2):
        path = folder / "offsets" / str(number)
        path.write_text(path.read_text().replace('{"t": ', '{"gone": {"0": 3}, "t": '))
    (folder / "metadata").write_text('{"id": "q"}')
    if stateful:
        (folder / "state" / "0").mkdir(parents=True)
    out = tmp_path / "out"
    store = ParquetStore(out, "append", "q", 1)
    for number in range(2 if written else 1):
        store.finish(store.begin(number))
    member = Deleted({T0: 5})
    query = Runs(folder, member, out)
    query.start({T0})
    assert query.runs == [{T0: 9 if written else 5}]
    assert member.stored == {T0: 9 if written else 5}


@pytest.mark.parametrize(("committed", "begun"), [(5, 9), (9, 9), (0, 0), (7, 7)])
def test_batch_in_the_sink_does_not_come_again_in_the_partitions_that_are_left(
    tmp_path: Path, committed: int, begun: int
) -> None:
    """The driver died before it committed, and the next one reads fewer; or there was a reset."""
    folder = checkpoint(tmp_path / "checkpoint", [{"0": 5, "1": 5}, {"0": 9, "1": 9}], finished=1)
    (folder / "metadata").write_text('{"id": "q"}')
    out = tmp_path / "out"
    store = ParquetStore(out, "append", "q", 1)
    for number in range(2):
        store.finish(store.begin(number))
    query = Runs(folder, FakeMembership({T0: committed}), out)
    query.start({T0})
    assert query.runs == [{T0: begun}]


class NewGroup(FakeMembership):
    """A group that has read nothing yet, and notes each look for its offsets in a topic."""

    def __init__(self) -> None:
        super().__init__({})
        self.looks: list[str] = []

    def topic_records(self, _: Iterable[str]) -> dict[str, TopicRecord]:
        return {}

    def has_offsets(self, topic: str) -> bool:
        self.looks.append(topic)
        return False

    def record_topics(self, *_: Collection[object]) -> None:
        pass


def test_new_group_looks_once_for_offsets_in_a_topic_of_many_partitions(tmp_path: Path) -> None:
    member = NewGroup()
    query = Runs(tmp_path / "checkpoint", member)
    query.start({T0, T1})
    assert query.runs == [{T0: 0, T1: 0}]
    assert member.looks == ["t"]


@pytest.mark.parametrize("finished", [1, 2])
def test_checkpoint_that_is_older_than_the_sink_counts_as_a_new_query(
    tmp_path: Path, finished: int
) -> None:
    """Batches 0 to 2 are in the sink. The machine lost power before its disk had offsets/2."""
    folder = checkpoint(tmp_path / "checkpoint", [{"0": 5}, {"0": 9}], finished=finished)
    (folder / "metadata").write_text('{"id": "q"}')
    out = tmp_path / "out"
    store = ParquetStore(out, "append", "q", 1)
    for number in range(2):
        store.finish(store.begin(number))
    query = Runs(folder, FakeMembership({T0: 14}), out)
    query.start({T0})
    assert offsets.query_id(LocalFolder(folder)) == "q"
    store.finish(store.begin(2))
    query.start({T0})
    assert offsets.query_id(LocalFolder(folder)) not in ("q", "")
    again = Runs(folder, FakeMembership({T0: 14}), out)
    renewed = offsets.query_id(LocalFolder(folder))
    again.start({T0})
    assert offsets.query_id(LocalFolder(folder)) == renewed


def test_sink_that_does_not_answer_at_the_start_is_told_in_one_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path, [{"0": 5}], finished=1)
    (folder / "metadata").write_text('{"id": "q"}')
    sink = config.JdbcSink("jdbc:postgresql://127.0.0.1:1/postgres", "t")
    with pytest.raises(JobError, match=r"the sink does not answer: .*refused") as failure:
        Runs(folder, FakeMembership({T0: 5}), sink=sink).start({T0})
    assert "\n" not in str(failure.value)
