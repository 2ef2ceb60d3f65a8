"""Real Spark queries that change over a checkpoint with state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import DataFrame

from odradek.values import TopicPartition
from odradek_spark import config, offsets, show
from odradek_spark.errors import FencedError, JobStalledError
from odradek_spark.membership import GroupMembership
from odradek_spark.storage import LocalFolder
from tests.spark.guarded_groups import Group, Run, committed, part
from tests.support.clients import produce_all
from tests.support.sampling import some_of

pytestmark = pytest.mark.timeout(1200)

HALVES = "select n % 2 as part, count(*) as lines from records group by 1"
# Its state has the same types: Spark reads that of HALVES as its own.
THIRDS = "select n % 3 as part, count(*) as lines from records group by 1"


def counts(run: Run) -> dict[object, object]:
    """Return the lines per part in the sink."""
    names, rows = show.read(run.out)
    return {row[names.index("part")]: row[names.index("lines")] for row in rows}


def asking(request: str, strategy: str = "NewCheckpoint") -> dict[str, object]:
    return {"migration": {"requestId": request, "strategy": strategy}}


def test_changed_query_is_refused_until_somebody_says_what_becomes_of_its_state(
    group: Callable[..., Group], run: Callable[..., Run]
) -> None:
    one = group(records=12)
    run(one, sql=HALVES).read_all()
    one.produce(6)
    with pytest.raises(JobStalledError, match=r"^StatefulQueryChanged: spec\.job\.sql was changed"):
        run(one, sql=THIRDS).read_all()
    # Nothing was touched: the former query goes on, and what was only written otherwise, too.
    former = run(one, sql=f"{HALVES} -- twelve, then six")
    former.read_all()
    assert counts(former) == {0: 9, 1: 9}

    one.produce(3)
    anew = run(one, sql=THIRDS, **asking("a"))
    anew.read_all()
    # The state starts empty at the group's offsets: 18 records are not counted again.
    assert (counts(anew), committed(one)) == ({0: 1, 1: 1, 2: 1}, 21)
    one.produce(3)
    # The request counts once, and taking it out of the spec is none.
    for again in (run(one, sql=THIRDS, **asking("a")), run(one, sql=THIRDS)):
        again.read_all()
        assert counts(again) == {0: 2, 1: 2, 2: 2}
    with pytest.raises(JobStalledError, match="StatefulQueryChanged"):
        run(one, sql=HALVES, **asking("a")).read_all()
    one.produce(3)
    kept = run(one, sql=f"{THIRDS} having count(*) > 1", **asking("b", "KeepState"))
    kept.read_all()
    assert counts(kept) == {0: 3, 1: 3, 2: 3}


@pytest.mark.full(
    "tests/spark/test_migration.py::test_changed_query_is_refused_until_somebody_says_what_becomes_of_its_state"
)
def test_spark_refuses_state_of_other_types_and_the_former_query_goes_on(
    group: Callable[..., Group], run: Callable[..., Run]
) -> None:
    one = group(records=12)
    run(one, sql=HALVES).read_all()
    one.produce(6)
    wider = HALVES.replace("count(*) as", "max(n) as most, count(*) as")
    with pytest.raises(JobStalledError, match="STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"):
        run(one, sql=wider, **asking("a", "KeepState")).read_all()
    # Nor does a query with a mistake take anything away.
    with pytest.raises(config.JobConfigError, match="nowhere"):
        run(one, sql=HALVES.replace("n %", "nowhere %"), **asking("b")).read_all()
    former = run(one, sql=HALVES)
    former.read_all()
    assert (counts(former), committed(one)) == ({0: 9, 1: 9}, 18)


def test_batch_in_the_sink_is_not_read_again_by_the_next_checkpoint(
    group: Callable[..., Group], run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies between write and commit, and comes back with another query."""
    commit = GroupMembership.commit

    def dies(member: GroupMembership, ends: dict[TopicPartition, int], deadline_s: float) -> None:
        if any(ends.values()):
            raise FencedError("the driver died")
        commit(member, ends, deadline_s)

    one = group(records=12)
    first = run(one)
    with monkeypatch.context() as patched:
        patched.setattr(GroupMembership, "commit", dies)
        assert "the driver died" in str(first.fails_with(first.start()))
    assert (first.rows(), committed(one)) == (list(range(12)), 0)
    one.produce(3)
    other = run(one, sql="select n + 1 as n, _offset from records", **asking("a"))
    other.read_all()
    assert other.rows() == list(range(15))


def test_query_without_state_becomes_one_with_state_by_itself(
    group: Callable[..., Group], run: Callable[..., Run], tmp_path: Path
) -> None:
    one = group(records=12)
    run(one).read_all()
    one.produce(6)
    out = tmp_path / "counted"
    reading = run(one, sql=HALVES, sink={"parquet": {"path": str(out)}})
    reading.out = out
    folder = LocalFolder(reading.checkpoint)
    assert not offsets.has_state(folder)
    reading.read_all()
    assert (counts(reading), committed(one)) == ({0: 3, 1: 3}, 18)
    assert offsets.has_state(folder)


@pytest.mark.parametrize("request_id", some_of([None, "a"], ["a"]))
def test_driver_that_dies_while_it_deletes_a_checkpoint_leaves_the_rest_to_the_next(
    request_id: str | None,
    group: Callable[..., Group],
    run: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    one = group(records=12)
    first = run(one, sink={"parquet": {"path": str(tmp_path / "former")}})
    first.read_all()
    one.produce(6)
    first.read_all()
    # As if its driver had died before it wrote the second batch.
    LocalFolder(first.checkpoint).remove("commits/1")
    one.reset({part(one): 12})

    remove = LocalFolder.remove

    def dies(folder: LocalFolder, name: str) -> None:
        if name == "offsets":
            raise OSError("the driver died")
        remove(folder, name)

    asked = {} if request_id is None else asking(request_id)
    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, "remove", dies)
        with pytest.raises(OSError, match="the driver died"):
            run(one, sql=HALVES, **asked).read_all()
    anew = run(one, sql=HALVES, **asked)
    anew.read_all()
    assert (counts(anew), committed(one)) == ({0: 3, 1: 3}, 18)


@pytest.mark.full(
    "tests/spark/test_migration.py::test_query_without_state_becomes_one_with_state_by_itself"
)
def test_query_without_state_may_read_from_other_sources(
    group: Callable[..., Group], run: Callable[..., Run]
) -> None:
    one = group(records=4)
    plain = run(one)
    plain.read_all()
    one.produce(2)
    both = "select n, _offset from records union all select -n, _offset from records"
    for _ in range(2):
        run(one, sql=both).read_all()
    assert plain.rows() == [0, 1, 2, 3, 4, 4, 5, 5]


@pytest.mark.full(
    "tests/spark/test_migration.py::test_changed_query_is_refused_until_somebody_says_what_becomes_of_its_state"
)
def test_python_function_that_changed_behind_its_name_is_refused(
    group: Callable[..., Group], run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("changing")
    monkeypatch.setitem(sys.modules, "changing", module)

    def becomes(parts: int) -> None:
        def transform(records: DataFrame) -> DataFrame:
            return records.selectExpr(f"n % {parts} as part").groupBy("part").count()

        module.__dict__["transform"] = transform

    one = group(records=12)
    becomes(2)
    for _ in range(2):
        run(one, sql=None, python="changing:transform").read_all()
        one.produce(2)
    becomes(3)
    with pytest.raises(JobStalledError, match=r"the function of spec\.job\.python was changed"):
        run(one, sql=None, python="changing:transform").read_all()
    becomes(2)
    run(one, sql=None, python="changing:transform").read_all()
    becomes(3)
    run(one, sql=None, python="changing:transform", **asking("a")).read_all()


@pytest.mark.full(
    "tests/spark/test_migration.py::test_changed_query_is_refused_until_somebody_says_what_becomes_of_its_state"
)
def test_request_that_comes_with_a_new_group_finds_nothing_to_delete(
    group: Callable[..., Group], run: Callable[..., Run]
) -> None:
    one = group(records=6)
    first = run(one, sql=HALVES, **asking("a"))
    first.read_all()
    one.produce(2)
    second = run(one, sql=HALVES, **asking("a"))
    second.read_all()
    assert counts(second) == {0: 4, 1: 4}


WINDOWS = (
    "select date_format(window(at, '1 minute').start, 'm') as part, {} as lines "
    "from records group by window(at, '1 minute')"
)


@pytest.mark.parametrize(("reset", "lines"), some_of([(None, 1), (2, 3)], [(2, 3)]))
def test_open_window_counts_what_comes_after_unless_offsets_are_reset_along(
    group: Callable[..., Group], run: Callable[..., Run], reset: int | None, lines: int
) -> None:
    one = group()
    watermark = {"column": "at", "delay": "1 second"}

    def produce(*times: str) -> None:
        values = [b'{"at": "2026-01-01T00:%s"}' % time.encode() for time in times]
        produce_all(one.cluster.bootstrap, one.name, values, 1)

    produce("00:00", "00:10", "01:10", "01:20")
    first = run(one, sql=WINDOWS.format("count(*)"), schema="at timestamp", watermark=watermark)
    first.read_all()
    assert counts(first) == {"0": 2}
    produce("01:30", "03:00")
    if reset is not None:
        one.reset({part(one): reset})
    anew = run(
        one,
        sql=WINDOWS.format("count(at)"),
        schema="at timestamp",
        watermark=watermark,
        **asking("a"),
    )
    anew.read_all()
    assert counts(anew) == {"0": 2, "1": lines}
