"""Topics that are made anew and logs that are truncated while real Spark queries read them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from odradek.zk import consumers
from odradek_spark import offsets, show
from odradek_spark.errors import JobStalledError
from odradek_spark.query import Query
from odradek_spark.storage import LocalFolder
from odradek_spark.topic_guard import TopicChangedError, TopicGuard
from tests.spark.guarded_groups import (
    Group,
    Run,
    committed,
    part,
)
from tests.support.broker import wait_until
from tests.support.clients import QUIET
from tests.support.sampling import some_of

pytestmark = pytest.mark.timeout(1200)


def test_topic_made_anew_while_the_query_idles_is_read_from_its_start_after_a_reset(
    group: Callable[..., Group], run: Callable[..., Run]
) -> None:
    one = group(records=10)
    # No second batch comes by itself: only the driver's look at the topic finds the change.
    reading = run(one, trigger="1h")
    query = reading.start()
    wait_until(lambda: committed(one) == 10, "all is read")
    assert query.changed_topic() is None
    one.make_anew(records=30)
    assert "was made anew" in str(query.changed_topic())
    query.finish()
    with pytest.raises(JobStalledError, match="TopicRecreated"):
        reading.start()
    one.reset({part(one): 0})
    run(one).read_all()
    assert reading.rows() == sorted([*range(10), *range(30)])
    assert committed(one) == 30


COUNT = "select n % 2 as half, count(*) as lines, max(_offset) as _offset from records group by 1"


@pytest.mark.parametrize("sql", some_of(["select n, _offset from records", COUNT], [COUNT]))
def test_batch_that_was_planned_over_a_topic_made_anew_is_never_written(
    group: Callable[..., Group],
    run: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
    sql: str,
) -> None:
    one = group(records=10)
    reading = run(one, sql=sql)
    reading.read_all()
    before = reading.rows()
    with monkeypatch.context() as patched:
        run_query = Query._run

        def make_anew_first(query: Query, *arguments: object, **options: object) -> None:
            one.make_anew(records=30)
            run_query(query, *arguments, **options)  # type: ignore[arg-type]

        patched.setattr(Query, "_run", make_anew_first)
        query = reading.start()
        ending = reading.fails_with(query)
    assert isinstance(ending, TopicChangedError)
    # Spark planned this batch, from the old offset to the new end.
    known = offsets.progress(LocalFolder(reading.checkpoint))
    assert known is not None
    assert (known.pending, known.starts, known.ends) == (True, {part(one): 10}, {part(one): 30})
    assert (reading.rows(), committed(one)) == (before, 10)
    with pytest.raises(JobStalledError, match="TopicRecreated"):
        reading.start()
    one.reset({part(one): 0})
    reading.read_all()
    assert committed(one) == 30
    if sql == COUNT:
        names, rows = show.read(reading.out)
        assert [row[names.index("lines")] for row in rows] == [20, 20]
    else:
        assert reading.rows() == sorted([*range(10), *range(30)])


@pytest.mark.parametrize("sql", some_of(["select n, _offset from records", COUNT], [COUNT]))
def test_deleted_group_starts_where_a_new_one_does_though_its_checkpoint_is_left(
    group: Callable[..., Group], run: Callable[..., Run], sql: str
) -> None:
    one = group(records=10)
    reading = run(one, sql=sql)
    reading.read_all()
    one.produce(5)
    # The ConsumerGroup was deleted with deletionPolicy Retain: the group goes on.
    reading.read_all()
    before = reading.rows()
    if sql != COUNT:
        assert before == [*range(15)]
    # And now with Delete: as the operator does, once the driver has left.
    one.leave()
    one.zookeeper.delete(consumers.group_path(one.name), recursive=True)
    reading.read_all()
    assert committed(one) == 15
    if sql == COUNT:
        names, rows = show.read(reading.out)
        assert sorted(row[names.index("lines")] for row in rows) == [7, 8]
    else:
        assert reading.rows() == sorted([*before, *range(15)])


@pytest.mark.full(
    "tests/spark/test_topics_under_queries.py::test_deleted_group_starts_where_a_new_one_does_though_its_checkpoint_is_left"
)
def test_deleted_group_that_starts_at_the_end_skips_what_its_checkpoint_had_to_read(
    group: Callable[..., Group], run: Callable[..., Run]
) -> None:
    one = group(records=10)
    run(one).read_all()
    one.produce(5)
    one.leave()
    one.zookeeper.delete(consumers.group_path(one.name), recursive=True)
    latest = run(one, startingOffsets="latest")
    latest.read_all()
    assert (latest.rows(), committed(one)) == ([*range(10)], 15)


def test_records_that_go_before_their_batch_reads_them_are_named_at_the_next_start(
    group: Callable[..., Group], run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = group(records=10)
    reading = run(one)
    reading.read_all()
    one.produce(10)
    with monkeypatch.context() as patched:
        patched.setattr(TopicGuard, "changed", lambda _: one.delete_records(15))
        ending = reading.fails_with(reading.start())
    assert "begins at 15, after 10" in str(ending)
    with pytest.raises(JobStalledError, match="DataTruncated"):
        reading.start()
    one.reset({part(one): 15})
    reading.read_all()
    assert reading.rows() == [*range(10), *range(15, 20)]


@pytest.mark.parametrize("sink", ["parquet", "console"])
def test_time_stamp_that_spark_cannot_hold_is_told(
    group: Callable[..., Group], run: Callable[..., Run], sink: str
) -> None:
    one = group()
    producer = Producer({"bootstrap.servers": one.cluster.bootstrap, **QUIET})
    producer.produce(one.name, b'{"n": 1}', timestamp=2**63 - 1)
    assert producer.flush(60) == 0
    job: dict[str, object] = {} if sink == "parquet" else {"sink": {"console": {}}}
    reading = run(one, **job)
    error = reading.fails_with(reading.start())
    assert "the query failed: a record has a time stamp that Spark cannot hold" in str(error)
