"""Decisions of a query before Spark runs it, with fakes that record calls."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from odradek.values import TopicPartition
from odradek_spark import offsets
from odradek_spark.query import Query
from tests.support.spark_checkpoint import checkpoint
from tests.support.spark_job import local_job

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeMembership:
    """A membership with the given offsets, which records commits."""

    topics = ("t",)

    def __init__(self, stored: Mapping[TopicPartition, int]) -> None:
        self.stored = dict(stored)
        self.commits: list[dict[TopicPartition, int]] = []

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {part: offset for part, offset in self.stored.items() if part in partitions}

    def commit(self, ends: Mapping[TopicPartition, int], _: float) -> None:
        self.commits.append(dict(ends))
        self.stored.update(ends)


class Runs(Query):
    """A query whose batches never end; a signal arrives during the first one."""

    def __init__(self, folder: Path, member: FakeMembership) -> None:
        self.stop = threading.Event()
        self.runs: list[dict[TopicPartition, int]] = []
        anything = cast(Any, None)
        super().__init__(local_job(), folder, anything, cast(Any, member), anything, self.stop)

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
    (folder / "state").mkdir()
    member = FakeMembership({T0: 7})
    query = Runs(folder, member)
    query.start({T0})
    assert query.runs == [{T0: 9}]
    assert member.commits == []
    assert offsets.progress(folder) == offsets.CheckpointProgress(
        1, {T0: 9}, pending=True, starts={T0: 5}
    )


@pytest.mark.parametrize("reset_to", [0, 9])
def test_reset_is_heeded_while_the_first_batch_is_open(tmp_path: Path, reset_to: int) -> None:
    folder = checkpoint(tmp_path, [{"0": 9}], finished=0, start={"0": 4})
    query = Runs(folder, FakeMembership({T0: reset_to}))
    query.start({T0})
    assert query.runs == [{T0: reset_to}]
    assert offsets.progress(folder) == offsets.CheckpointProgress(0, {T0: reset_to})


def test_query_that_goes_on_lets_the_member_know_the_offsets(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, [{"0": 5, "1": 2}], finished=1)
    member = FakeMembership({T0: 5})
    query = Runs(folder, member)
    query.start({T0, T1})
    assert member.commits == [{T0: 5, T1: 2}]
    assert query.runs == [{T0: 5, T1: 2}]
