"""The driver's work beside its query, with a fake membership."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaException
from kazoo.exceptions import ConnectionLoss

from odradek.values import TopicPartition
from odradek.zk.znodes import ZnodeError
from odradek_spark import __main__ as command
from odradek_spark import config, executors, sinks
from odradek_spark import driver as module
from odradek_spark.config import JobConfigError
from odradek_spark.driver import Driver
from odradek_spark.errors import FencedError, JobError, JobStalledError
from odradek_spark.pulse import QueryState
from tests.support.spark_job import ENVIRONMENT, job_text, local_job


class FakeMembership:
    """A membership with fixed answers."""

    def __init__(self, others_own: bool, is_assignment_current: bool) -> None:
        self.others_own = others_own
        self.changed = threading.Event()
        self._is_assignment_current = is_assignment_current

    def is_assignment_current(self) -> bool:
        return self._is_assignment_current


class Ended:
    """A query that has read its partitions, and reports that once."""

    def __init__(self) -> None:
        self.asked = 0

    def await_end(self, _: int) -> bool:
        self.asked += 1
        assert self.asked == 1
        return True


def ends_with_everything_read(member: FakeMembership, query: Ended | None) -> bool:
    driver = Driver(local_job(trigger="availableNow"), ENVIRONMENT)
    return driver._await_rebalance(cast(Any, query), cast(Any, member))


with_and_without_a_share = pytest.mark.parametrize("query", [Ended, lambda: None])


@with_and_without_a_share
def test_job_with_an_end_waits_for_what_a_dead_driver_may_have_left(
    query: Callable[[], Ended | None],
) -> None:
    member = FakeMembership(others_own=True, is_assignment_current=False)
    member.changed.set()
    assert not ends_with_everything_read(member, query())


@with_and_without_a_share
def test_job_with_an_end_is_done_where_others_live_or_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, query: Callable[[], Ended | None]
) -> None:
    assert ends_with_everything_read(
        FakeMembership(others_own=False, is_assignment_current=True), query()
    )
    monkeypatch.setattr(Driver, "_owner_patience_s", 0.0)
    assert ends_with_everything_read(
        FakeMembership(others_own=True, is_assignment_current=True), query()
    )
    # The last check finds a new assignment.
    assert not ends_with_everything_read(
        FakeMembership(others_own=True, is_assignment_current=False), query()
    )


@pytest.mark.parametrize("changed", [None, "topic t was made anew"])
def test_idle_query_ends_when_its_topic_was_made_anew(changed: str | None) -> None:
    driver = Driver(local_job(), ENVIRONMENT)
    member = FakeMembership(others_own=False, is_assignment_current=True)

    class Idle:
        def changed_topic(self) -> str | None:
            return changed

    kept = driver._keeps_assignment(cast(Any, Idle()), cast(Any, member))
    assert kept is (changed is None)


def test_assignment_that_cannot_be_read_is_looked_at_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver(local_job(), ENVIRONMENT)
    done: list[str] = []

    class Unreadable(FakeMembership):
        def is_assignment_current(self) -> bool:
            done.append("look")
            if done.count("look") == 2:
                driver._stop.set()
            raise ZnodeError("/consumers/g/ids/x", "is not JSON")

    member = Unreadable(others_own=True, is_assignment_current=True)
    member.changed.set()
    monkeypatch.setattr(driver._stop, "wait", lambda _: done.append("pause"))
    # It has no partitions, and so no query that would wait.
    assert not driver._await_rebalance(None, cast(Any, member))
    assert done == ["look", "pause"] * 2


def test_start_that_fails_at_once_is_tried_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver(local_job(), ENVIRONMENT)
    done: list[str] = []

    class Assigned:
        def acquire_assignment(self, *_: object) -> frozenset[TopicPartition]:
            return frozenset({TopicPartition("t", 0)})

    class Refused:
        def start(self, _: object) -> None:
            done.append("start")
            if done.count("start") == 2:
                driver._stop.set()
            raise KafkaException("the group is not yours")

        def finish(self) -> None:
            done.append("finish")

    monkeypatch.setattr(driver._stop, "wait", lambda _: done.append("pause"))
    driver._run_queries(cast(Any, Refused()), cast(Any, Assigned()))
    assert done == ["start", "pause", "finish"] * 2


def test_driver_tells_which_topics_it_waits_for_until_they_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver(local_job(), ENVIRONMENT)
    missing, *_ = topics = driver._job.topics
    told: list[str | None] = []

    class Late:
        def partitions(self, *_: object) -> list[TopicPartition]:
            told.append(driver.endpoint.status().waits_for)
            return [TopicPartition(one, 0) for one in topics] if len(told) == 2 else []

    monkeypatch.setattr(module, "_START_PAUSE_S", 0)
    driver._await_topics(cast(Any, Late()))
    assert told == [None, f"topic {missing} does not exist"]
    assert driver.endpoint.status().waits_for is None


def test_offsets_are_renewed_when_it_is_time_though_the_lag_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver(local_job(), ENVIRONMENT)
    renewals = []

    class Renewing:
        def renew_offsets(self) -> None:
            renewals.append(1)
            if len(renewals) == 1:
                raise KafkaException("no coordinator")
            driver._stop.set()

    def measure(*_: object) -> None:
        raise KafkaException("no broker")

    monkeypatch.setattr(driver, "_measure", measure)
    monkeypatch.setattr(module, "_RENEWAL_INTERVAL_S", 0.0)
    monkeypatch.setattr(config, "REFRESH_INTERVAL_S", 0)
    driver._watch(*cast(Any, (None, Renewing())))
    assert len(renewals) == 2


def test_driver_looks_at_its_group_when_a_later_one_keeps_it_from_renewing_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The later one died before it registered: no znode told of it that is watched."""
    driver = Driver(local_job(), ENVIRONMENT)
    renewals = []

    class Fenced:
        changed = threading.Event()

        def renew_offsets(self) -> None:
            renewals.append(1)
            if len(renewals) == 2:
                driver._stop.set()
            raise FencedError("a later driver of group g has started")

    def measure(*_: object) -> None:
        raise KafkaException("no broker")

    monkeypatch.setattr(driver, "_measure", measure)
    monkeypatch.setattr(module, "_RENEWAL_INTERVAL_S", 0.0)
    monkeypatch.setattr(config, "REFRESH_INTERVAL_S", 0)
    member = Fenced()
    driver._watch(*cast(Any, (None, member)))
    assert member.changed.is_set()
    assert len(renewals) == 2


class FakeSpark:
    """A session without a Spark job."""

    @property
    def sparkContext(self) -> FakeSpark:
        return self

    def statusTracker(self) -> FakeSpark:
        return self

    def getActiveJobsIds(self) -> list[int]:
        return []


def test_batches_are_looked_at_while_the_rows_of_the_table_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A count waits for executors as any Spark job: the driver must not seem to hang meanwhile."""
    driver = Driver(local_job(), ENVIRONMENT)
    spark = cast(Any, FakeSpark())
    counting, looked = threading.Event(), threading.Event()
    looks: list[object] = []

    def count(*_: object) -> int:
        counting.set()
        assert looked.wait(120)
        driver._stop.set()
        return 7

    def observe(seen: object) -> None:
        looks.append(seen)
        if len(looks) == 2:
            looked.set()

    class Idle:
        def state(self) -> QueryState:
            return QueryState.IDLE

    monkeypatch.setattr(sinks, "count_rows", count)
    monkeypatch.setattr(executors, "registered", lambda _: 1)
    monkeypatch.setattr(driver._pulse, "observe", observe)
    monkeypatch.setattr(config, "REFRESH_INTERVAL_S", 0)
    driver._batches = 1
    counter = threading.Thread(target=driver._count_rows, args=(spark,))
    counter.start()
    assert counting.wait(120)
    driver._observe(spark, cast(Any, Idle()))
    counter.join(120)
    assert driver.endpoint.status().table_rows == 7
    assert driver.endpoint.status().executors == 1


def test_job_file_that_is_no_text_is_refused_in_one_line(tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_bytes(b'{"group": "\xff"}')
    environment = {"ODRADEK_JOB": str(job), "ODRADEK_SPARK_MASTER": "local[2]"}
    result = CliRunner().invoke(command.main, env=environment)
    assert result.exit_code == 2
    *before, line = result.stderr.splitlines()
    assert not any("Traceback" in one for one in before)
    assert line.startswith("odradek-spark: cannot read the job file: 'utf-8' codec")


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConnectionLoss("not now\nand more"), 1, "ConnectionLoss: not now"),
        (JobError("a partition is owned by other"), 1, "a partition is owned by other"),
        (JobConfigError("the query: no\nplan"), 2, "the query: no"),
        (JobStalledError("TopicRecreated", "t is new\nand more"), 2, "TopicRecreated: t is new"),
    ],
    ids=["unexpected", "failed", "invalid", "stalled"],
)
def test_end_is_told_in_one_line_and_by_a_code_that_says_whether_time_may_help(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, code: int, text: str
) -> None:
    told = tmp_path / "termination-log"
    told.touch()
    monkeypatch.setattr(command, "_TERMINATION_LOG", told)
    job = tmp_path / "job.json"
    job.write_text(job_text())

    def run(_: Driver) -> bool:
        raise error

    monkeypatch.setattr(Driver, "run", run)
    environment = {"ODRADEK_JOB": str(job), "ODRADEK_SPARK_MASTER": "local[2]"}
    result = CliRunner().invoke(command.main, env=environment)
    assert result.exit_code == code
    line = f"odradek-spark: {text}"
    assert told.read_text() == line
    assert result.stderr.splitlines()[-1] == line
