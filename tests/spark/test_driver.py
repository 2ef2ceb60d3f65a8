"""The driver as a process, with a real broker, a real ZooKeeper and a Parquet sink."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from odradek.values import TopicPartition
from odradek.zk import consumers
from odradek_spark import group_znodes, membership
from odradek_spark.broker_access import BrokerAccess
from odradek_spark.kafka_offsets import KafkaOffsets
from tests.support import broker, spark_jvm
from tests.support.broker import wait_until
from tests.support.clients import create_topic
from tests.support.postgres import Postgres
from tests.support.sampling import FULL
from tests.support.spark_driver import PATIENCE_S, Driver

pytestmark = pytest.mark.timeout(2400)

# Kills the driver when the sink has batch 1 and nothing is committed of it.
CRASHING_DRIVER = """
import os, signal
from odradek_spark import sinks
open_sink = sinks.open_sink

def open_crashing(sink, context):
    write = open_sink(sink, context)
    def write_and_die(rows, batch_id):
        write(rows, batch_id)
        if batch_id == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return write_and_die

sinks.open_sink = open_crashing
from odradek_spark.__main__ import main
main()
"""


# Stops itself when the rows of batch 1 are staged, and it was let pass by ZooKeeper.
PAUSING_DRIVER = """
import os, signal
from odradek_spark.sinks import jdbc
apply = jdbc._Target.apply

def pause(self, token, batch_id):
    if batch_id == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    apply(self, token, batch_id)

jdbc._Target.apply = pause
from odradek_spark.__main__ import main
main()
"""

# Kills the driver when the database has batch 2 and nothing is committed of it.
DYING_DRIVER = """
import os, signal
from odradek_spark.sinks import jdbc
apply = jdbc._Target.apply

def die(self, token, batch_id):
    apply(self, token, batch_id)
    if batch_id == 2:
        os.kill(os.getpid(), signal.SIGKILL)

jdbc._Target.apply = die
from odradek_spark.__main__ import main
main()
"""


@pytest.fixture
def driver(
    cluster: broker.Cluster, tmp_path: Path, drivers_jvm: spark_jvm.SharedJvm
) -> Iterator[Callable[[str], Driver]]:
    made: list[Driver] = []

    def make(group: str) -> Driver:
        made.append(Driver(cluster, tmp_path, group, drivers_jvm))
        return made[-1]

    yield make
    for one in made:
        one.kill()


def test_crash_between_sink_and_commit_replays_the_batch_and_nothing_is_lost_or_doubled(
    driver: Callable[[str], Driver],
) -> None:
    one = driver("crash-1")
    one.produce(range(100))
    one.start(CRASHING_DRIVER, own_jvm=True)
    one.await_committed(100)
    one.produce(range(100, 250))
    assert one.wait() == -signal.SIGKILL
    one.end_session()
    # The sink has more than is committed: the crash was where it was meant to be.
    shown = one.rows()
    assert len(shown) > one.committed() == 100
    one.produce(range(250, 300))
    one.start(trigger="availableNow")
    assert one.wait() == 0, one.log.read_text()[-3000:]
    assert one.rows() == list(range(300))
    assert one.committed() == 300
    assert one.registered() == []


@pytest.mark.full(
    "tests/spark/test_iceberg.py::test_driver_that_is_paused_within_its_commit_adds_nothing_however_late"
)
def test_driver_that_was_paused_in_its_commit_adds_nothing_to_those_after_it(
    driver: Callable[[str], Driver], postgres: Postgres
) -> None:
    one = driver("paused-1")
    two, three = one.successor(), one.successor()
    job: dict[str, Any] = {"sink": {"jdbc": {"url": postgres.url, "table": "paused"}}}

    def epoch(of: Driver) -> int:
        return int(json.loads(of.get("/status"))["checkpointEpoch"])

    try:
        one.produce(range(100))
        one.start(PAUSING_DRIVER, own_jvm=True, **job)
        one.await_committed(100)
        first = epoch(one)
        one.produce(range(100, 200))
        one.await_paused()
        one.end_session()
        if FULL:
            two.start(DYING_DRIVER, **job)
            two.await_committed(200)
            assert epoch(two) > first
        two.produce(range(200, 250))
        if FULL:
            assert two.wait() == -signal.SIGKILL
            two.end_session()
            assert two.committed() == 200
        three.start(**job)
        three.await_committed(250)
        assert epoch(three) > first
        one.go_on()
        assert one.wait() == 1, one.log.read_text()[-3000:]
        # The database may have ended the transaction of one that was silent for so long.
        assert one.last_line().startswith(
            (
                "odradek-spark: a later driver of group paused-1",
                "odradek-spark: the query failed: org.postgresql.util.PSQLException: ",
            )
        )
        three.produce(range(250, 300))
        three.await_committed(300)
        assert three.terminate() == 0
    finally:
        two.kill()
        three.kill()
    rows = postgres.sql("select n from paused order by n")
    assert [int(row[0]) for row in rows] == list(range(300))


def test_query_outlives_a_broker_restart_and_ends_cleanly_when_asked(
    driver: Callable[[str], Driver],
) -> None:
    one = driver("restart-1")
    one.offset_store = "Both"
    one.produce(range(50))
    one.start()
    one.await_committed(50)
    broker_one = next(iter(one.cluster.brokers.values()))
    one.cluster.crash(broker_one.broker_id)
    broker_one.start()
    one.produce(range(50, 120))
    one.await_committed(120)
    lag_line = 'kafka_consumergroup_lag_sum{consumergroup="restart-1",topic="restart-1"} 0.0'
    current = (
        'kafka_topic_partition_current_offset{partition="0",topic="restart-1"}',
        'kafka_topic_partition_current_offset{partition="1",topic="restart-1"}',
    )

    def measured() -> bool:
        lines = one.get("/metrics").splitlines()
        ends = sum(float(line.split()[-1]) for line in lines if line.startswith(current))
        return lag_line in lines and ends == 120

    wait_until(measured, "the lag is 0 over 120 records", PATIENCE_S)

    def told() -> bool:
        status = json.loads(one.get("/status") or "{}")
        return [status.get(key) for key in ("state", "totalLag", "members")] == ["Running", 0, 1]

    # No lag is told while the last reading is old.
    wait_until(told, "the operator is told so", PATIENCE_S)
    assert one.get("/healthz") == "ok\n"
    assert json.loads(one.get("/status"))["executors"] == 1
    assert one.terminate() == 0
    assert one.rows() == list(range(120))
    assert one.registered() == []
    kafka = KafkaOffsets(BrokerAccess(one.cluster.bootstrap), one.group)
    parts = [TopicPartition(one.group, number) for number in (0, 1)]
    assert sum(kafka.committed(parts).values()) == 120
    kafka.close()


@pytest.mark.parametrize("dual", [False, True])
def test_member_keeps_its_offsets_at_the_coordinator(cluster: broker.Cluster, dual: bool) -> None:
    group = f"stored-{dual}"
    create_topic(cluster.bootstrap, group, partitions=2)
    here, there = (TopicPartition(group, number) for number in (0, 1))
    path = consumers.offset_path(group, group, 1)
    client = group_znodes.connect(cluster.zookeeper.connect, 20_000, 60)
    kafka = KafkaOffsets(BrokerAccess(cluster.bootstrap), group)
    member = membership.GroupMembership(
        client, group, "pod", {group: 1}, "static", kafka, dual_commit=dual
    )

    def is_served() -> bool:
        with contextlib.suppress(KafkaException):
            return kafka.committed([here]) == {}
        return False

    try:
        wait_until(is_served, "the group has a coordinator", PATIENCE_S)
        member.join()
        assert member.acquire_assignment(PATIENCE_S, threading.Event()) == {here, there}
        assert not member.has_offsets(group)
        member.commit({here: 3, there: 4}, deadline_s=120)
        assert kafka.committed([here, there]) == {here: 3, there: 4}
        assert (client.exists(path) is not None) is dual
        assert member.has_offsets(group)
        # What is ahead counts, where both stores do.
        client.ensure_path(path)
        client.set(path, b"9")
        assert member.committed([here, there]) == {here: 3, there: 9 if dual else 4}
        client.delete(consumers.consumer_id_path(group, member.consumer_id))
        client.delete(consumers.owner_path(group, group, 0))
        client.create(consumers.owner_path(group, group, 0), b"other-0", ephemeral=True)
        with pytest.raises(membership.OwnershipLostError):
            member.commit({here: 8}, deadline_s=120)
        assert kafka.committed([here])[here] == 3
    finally:
        member.leave()
        kafka.close()
        client.stop()
        client.close()


def test_group_of_a_living_owner_is_left_alone(driver: Callable[[str], Driver]) -> None:
    one = driver("owned-1")
    owner = consumers.owner_path("owned-1", "owned-1", 1)
    with one.cluster.zookeeper.client() as client:
        client.create(owner, b"other-0", ephemeral=True, makepath=True)
        one.start()
        assert one.wait() == 1
        assert client.get_children(consumers.consumer_ids_path("owned-1")) == []
        assert client.get_children(consumers.owners_path("owned-1", "owned-1")) == ["1"]
    assert one.last_line() == (
        "odradek-spark: partition owned-1-1 of group owned-1 is owned by other"
    )
    assert not one.out.exists()


def test_share_goes_to_another_member_and_comes_back_with_its_offsets(
    driver: Callable[[str], Driver],
) -> None:
    one = driver("shared-1")
    one.session_ms = 30_000  # no share changes hands but as the test has it
    one.produce(range(60))
    one.start()
    one.await_committed(60)
    client = group_znodes.connect(one.cluster.zookeeper.connect, 20_000, 60)
    other = membership.GroupMembership(client, one.group, "a-first", {one.group: 1}, "static")
    try:
        other.join()
        # The name of this member comes first, so partition 0 is its share.
        mine = TopicPartition(one.group, 0)
        assert other.acquire_assignment(PATIENCE_S, threading.Event()) == {mine}
        before = other.committed([mine])[mine]
        one.produce(range(60, 160))
        end = Consumer({"bootstrap.servers": one.cluster.bootstrap, "group.id": "ends"})
        here = ClientPartition(one.group, 0)
        wait_until(lambda: end.get_watermark_offsets(here)[1] > before, "records came")
        last = end.get_watermark_offsets(here)[1]
        end.close()
        read_by_driver = 160 - (last - before)
        wait_until(
            lambda: len(one.rows()) == read_by_driver, "the driver reads its part", PATIENCE_S
        )
        other.commit({mine: last - 1}, deadline_s=120)
        assert one.registered().count("0") == 1
    finally:
        other.leave()
        client.stop()
        client.close()
    # What the other one did not do is done by the driver, and nothing twice.
    one.await_committed(160)
    assert len(one.rows()) == len(set(one.rows())) == read_by_driver + 1
    assert one.terminate() == 0
    assert one.registered() == []


def test_job_with_an_end_that_is_stopped_before_it_is_not_taken_for_done(
    driver: Callable[[str], Driver],
) -> None:
    one = driver("stopped-1")
    one.topics = ["not-there-yet"]
    one.start(trigger="availableNow")
    wait_until(
        lambda: "waiting for topics: topic" in one.log.read_text(), "the driver waits", PATIENCE_S
    )
    assert one.terminate() == 143
    assert one.last_line() == "odradek-spark: stopped by a signal before all records were read"


def test_columns_that_the_sink_refuses_in_a_batch_end_the_job_with_code_2(
    driver: Callable[[str], Driver],
) -> None:
    one = driver("refused-1")
    one.produce(range(10))
    one.start(sql="select n, null as nothing from records")
    assert one.wait() == 2, one.log.read_text()[-3000:]
    assert one.last_line().startswith("odradek-spark: the query: [UNSUPPORTED_DATA_TYPE")
    assert one.committed() == 0
    assert one.registered() == []


@pytest.mark.full(
    "tests/spark/test_topics_under_queries.py::test_topic_made_anew_while_the_query_idles_is_read_from_its_start_after_a_reset"
)
def test_driver_ends_with_code_2_when_its_topic_is_made_anew_while_it_runs(
    driver: Callable[[str], Driver],
) -> None:
    one = driver("anew-1")
    one.produce(range(100))
    one.start()
    one.await_committed(100)
    one.cluster.delete_topic(one.group)
    create_topic(one.cluster.bootstrap, one.group, partitions=2)
    one.produce(range(100, 400))
    assert one.wait() == 2, one.log.read_text()[-3000:]
    assert one.last_line().startswith(
        "odradek-spark: TopicRecreated: topic anew-1 was made anew at 20"
    )
    assert one.committed() == 100
    assert one.rows() == list(range(100))


def test_job_without_sense_ends_with_one_line_and_code_2(driver: Callable[[str], Driver]) -> None:
    one = driver("nonsense-1")
    one.start(trigger="often")
    assert one.wait() == 2
    assert one.log.read_text().startswith("odradek-spark: job.trigger 'often'")
    assert one.log.read_text().count("\n") == 1
