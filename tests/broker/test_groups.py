"""Real consumers in groups: every record delivered once, commits kept (rows G2, G3, Z8)."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from odradek.net.client import PeerClient
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages import group_offsets, groups
from odradek.zk import consumers
from tests.support.broker import STEADY, Cluster, wait_until
from tests.support.clients import QUIET, create_topic, kafka, produce_all
from tests.support.sampling import how_many

# kafka-python reads its message definitions by a function that Python 3.11 deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")

COORDINATOR_KILLS = how_many(4, full=20)
RECORDS = [f"value-{number}".encode() for number in range(400)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {
        **STEADY,
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "5",
    }
    with Cluster(tmp_path_factory.mktemp("groups"), settings=settings) as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic of four partitions that holds RECORDS."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    create_topic(cluster.bootstrap, name, partitions=4)
    produce_all(cluster.bootstrap, name, RECORDS, partitions=4)
    return name


def member(bootstrap: str, group: str, **settings: object) -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 500,
            **QUIET,
            **settings,
        }
    )


def drain(count: int, *members: confluent_kafka.Consumer) -> list[bytes]:
    """What the members get until so many different ones came, and whatever follows them.

    What nobody has committed comes again when the group's shares change.
    """
    got: list[bytes] = []

    def take(seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for one in members:
                for message in one.consume(500, 0.1):
                    assert message.error() is None, message.error()
                    value = message.value()
                    assert value is not None
                    got.append(value)

    def has_come() -> bool:
        take(0.1)
        return len(set(got)) >= count

    wait_until(has_come, f"{count} records")
    take(2)
    return got


def shares(*members: confluent_kafka.Consumer) -> list[int]:
    for one in members:
        one.poll(0.05)
    return [len(one.assignment()) for one in members]


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_share_partitions_and_take_over_when_one_leaves(
    cluster: Cluster, topic: str, strategy: str
) -> None:
    group = f"group-{strategy}"
    first, second = (
        member(cluster.bootstrap, group, **{"partition.assignment.strategy": strategy})
        for _ in range(2)
    )
    first.subscribe([topic])
    second.subscribe([topic])
    wait_until(lambda: shares(first, second) == [2, 2], "both have two partitions")
    first.close()
    wait_until(lambda: shares(second) == [4], "the one that stays has all four")
    second.close()


def test_every_record_is_delivered_once_to_a_group(cluster: Cluster, topic: str) -> None:
    members = [member(cluster.bootstrap, "once") for _ in range(2)]
    for one in members:
        one.subscribe([topic])
    got = drain(len(RECORDS), *members)
    for one in members:
        one.close()
    assert set(got) == set(RECORDS)


# A consumer in a process of its own, to be killed: says when it has partitions.
LONER = """
import sys, confluent_kafka
one = confluent_kafka.Consumer({"bootstrap.servers": sys.argv[1], "group.id": "crash",
    "session.timeout.ms": 6000, "heartbeat.interval.ms": 500})
one.subscribe([sys.argv[2]])
while True:
    one.poll(0.1)
    if one.assignment():
        print(len(one.assignment()), flush=True)
"""


def test_crashed_member_is_replaced_after_its_session(cluster: Cluster, topic: str) -> None:
    crashed = subprocess.Popen(
        [sys.executable, "-c", LONER, cluster.bootstrap, topic], stdout=subprocess.PIPE
    )
    with crashed:
        assert crashed.stdout is not None
        assert crashed.stdout.readline() == b"4\n"
        crashed.kill()
    survivor = member(cluster.bootstrap, "crash")
    survivor.subscribe([topic])
    wait_until(lambda: shares(survivor) == [4], "the survivor has every partition")
    survivor.close()


def test_kafka_python_consumes_in_a_group(cluster: Cluster, topic: str) -> None:
    one = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        group_id="python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    )
    got: set[bytes] = set()
    for record in one:
        got.add(record.value)
        if len(got) == len(RECORDS):
            break
    assert got == set(RECORDS)
    one.close()


def test_synchronous_commits_leave_no_record_to_be_read_twice(cluster: Cluster, topic: str) -> None:
    first = member(cluster.bootstrap, "resume")
    first.subscribe([topic])
    read: list[bytes] = []
    while len(read) < 150:
        message = first.poll(60)
        assert message is not None
        value = message.value()
        assert value is not None
        read.append(value)
        first.commit(message=message, asynchronous=False)
    first.close()
    second = member(cluster.bootstrap, "resume")
    second.subscribe([topic])
    rest = drain(len(RECORDS) - len(read), second)
    second.close()
    assert sorted(read + rest) == sorted(RECORDS)


def test_static_member_returns_to_its_share_without_a_rebalance(
    cluster: Cluster, topic: str
) -> None:
    names = {"a": member(cluster.bootstrap, "static", **{"group.instance.id": "a"})}
    names["b"] = member(cluster.bootstrap, "static", **{"group.instance.id": "b"})
    for one in names.values():
        one.subscribe([topic])
    wait_until(lambda: shares(*names.values()) == [2, 2], "both have two partitions")
    before = {(each.topic, each.partition) for each in names["a"].assignment()}
    generation = describe(cluster, "static")
    names["a"].close()
    names["a"] = member(cluster.bootstrap, "static", **{"group.instance.id": "a"})
    names["a"].subscribe([topic])
    wait_until(lambda: shares(names["a"]) == [2], "the restarted member has its share again")
    assert {(each.topic, each.partition) for each in names["a"].assignment()} == before
    assert {each.group_instance_id for each in generation.members} == {"a", "b"}
    for one in names.values():
        one.close()


def describe(cluster: Cluster, group: str) -> confluent_kafka.admin.ConsumerGroupDescription:
    client = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    answer = client.describe_consumer_groups([group], request_timeout=60)[group].result(120)
    assert isinstance(answer, confluent_kafka.admin.ConsumerGroupDescription)
    return answer


async def test_asyncio_consumers_share_a_group(cluster: Cluster, topic: str) -> None:
    settings = {
        "bootstrap_servers": cluster.bootstrap,
        "group_id": "asyncio",
        "auto_offset_reset": "earliest",
        "session_timeout_ms": 30_000,
    }
    members = [aiokafka.AIOKafkaConsumer(topic, **settings) for _ in range(2)]
    await asyncio.gather(*(one.start() for one in members))
    got: set[bytes] = set()
    async with asyncio.timeout(120):
        while got != set(RECORDS):
            for one in members:
                for batch in (await one.getmany(timeout_ms=200)).values():
                    got.update(record.value for record in batch)
    await asyncio.gather(*(one.stop() for one in members))


def test_topic_of_offsets_is_made_as_kafka_makes_it(cluster: Cluster, topic: str) -> None:
    one = member(cluster.bootstrap, "first")
    one.committed([confluent_kafka.TopicPartition(topic, 0)], 60)
    one.close()
    client = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    resource = ConfigResource(ResourceType.TOPIC, "__consumer_offsets")
    found = client.describe_configs([resource])[resource].result(60)
    # GroupCoordinator.offsetsTopicConfigs of Kafka 2.8
    wanted = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }
    assert {name: found[name].value for name in wanted} == wanted
    assert len(client.list_topics(timeout=30).topics["__consumer_offsets"].partitions) == 5


def test_groups_are_listed_described_and_deleted(cluster: Cluster, topic: str) -> None:
    one = member(cluster.bootstrap, "seen")
    one.subscribe([topic])
    wait_until(lambda: shares(one) == [4], "joined")
    one.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 7)], asynchronous=False)
    client = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    listed = client.list_consumer_groups(request_timeout=60).result(120)
    assert "seen" in {each.group_id for each in listed.valid}
    described = describe(cluster, "seen")
    assert described.state.name == "STABLE"
    assert len(described.members[0].assignment.topic_partitions) == 4
    with pytest.raises(confluent_kafka.KafkaException, match=r"(?i)not empty|non_empty"):
        client.delete_consumer_groups(["seen"], request_timeout=60)["seen"].result(120)
    one.close()
    # librdkafka waits five seconds for the answer to its farewell.
    wait_until(lambda: describe(cluster, "seen").state.name == "EMPTY", "the member has left")
    client.delete_consumer_groups(["seen"], request_timeout=60)["seen"].result(120)
    again = member(cluster.bootstrap, "seen")
    (committed,) = again.committed([confluent_kafka.TopicPartition(topic, 0)], 30)
    assert committed.offset == confluent_kafka.OFFSET_INVALID
    again.close()


def test_offsets_end_with_their_retention(tmp_path: Path) -> None:
    settings = {
        **STEADY,
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "offsets.retention.minutes": "1",
        "offsets.retention.check.interval.ms": "200",
    }
    with Cluster(tmp_path, settings=settings) as running:
        create_topic(running.bootstrap, "t")
        hour_ms = 3_600_000
        for group, age_ms in (("old", 61_000), ("fresh", -hour_ms)):
            # An old consumer may say when it read; so nobody has to wait a minute, or to hurry.
            commit_at(running, group, int(time.time() * 1000) - age_ms)
        here = [confluent_kafka.TopicPartition("t", 0)]
        old, fresh = member(running.bootstrap, "old"), member(running.bootstrap, "fresh")
        wait_until(lambda: old.committed(here, 60)[0].offset < 0, "the old offset is gone")
        assert fresh.committed(here, 60)[0].offset == 5
        old.close()
        fresh.close()
        groups = AdminClient({"bootstrap.servers": running.bootstrap, **QUIET})
        listed = groups.list_consumer_groups(request_timeout=60).result(120).valid
        assert [group.group_id for group in listed] == ["fresh"]


def commit_at(running: Cluster, group: str, at_ms: int) -> None:
    """Commit 5 for t-0 with a time of its own, as version 1 of the request can."""
    commit_in_version(1, running, group, "t", at_ms=at_ms)


def commit_in_version(
    version: int,
    running: Cluster,
    group: str,
    topic: str,
    *,
    at_ms: int = -1,
    retention_ms: int = -1,
) -> None:
    part = group_offsets.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=5, commit_timestamp=at_ms, committed_metadata=""
    )
    request = group_offsets.OffsetCommitRequest(
        group_id=group,
        retention_time_ms=retention_ms,
        topics=[group_offsets.OffsetCommitRequestTopic(name=topic, partitions=[part])],
    )

    async def work() -> None:
        client = PeerClient("127.0.0.1", next(iter(running.brokers.values())).port, "test")
        code = -1
        async with asyncio.timeout(120):
            while code != ErrorCode.NONE:
                await client.call(groups.FindCoordinatorRequest(key=group), 1, 30_000)
                answer = await client.call(request, version, 30_000)
                code = answer.topics[0].partitions[0].error_code
                await asyncio.sleep(0.05)
        await client.close()

    asyncio.run(work())


def test_commit_may_ask_to_be_kept_for_ever(cluster: Cluster, topic: str) -> None:
    commit_in_version(2, cluster, "patient", topic, retention_ms=2**63 - 1)
    one = member(cluster.bootstrap, "patient")
    (found,) = one.committed([confluent_kafka.TopicPartition(topic, 0)], 60)
    assert found.offset == 5
    one.close()


def test_empty_group_id_has_offsets_and_no_members(cluster: Cluster, topic: str) -> None:
    commit_in_version(2, cluster, "", topic)
    there = group_offsets.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])
    gone = group_offsets.OffsetDeleteRequestTopic(
        name=topic, partitions=[group_offsets.OffsetDeleteRequestPartition(partition_index=0)]
    )
    join = groups.JoinGroupRequest(
        group_id="", session_timeout_ms=30_000, member_id="", protocol_type="consumer", protocols=[]
    )

    nobody: dict[str, Any] = {"group_id": "", "generation_id": 1, "member_id": "m"}

    async def work() -> None:
        client = PeerClient("127.0.0.1", next(iter(cluster.brokers.values())).port, "test")
        fetch = group_offsets.OffsetFetchRequest(group_id="", topics=[there])
        [found] = (await client.call(fetch, 5, 30_000)).topics[0].partitions
        assert (found.error_code, found.committed_offset) == (ErrorCode.NONE, 5)
        [named] = (await client.call(groups.DescribeGroupsRequest(groups=[""]), 4, 30_000)).groups
        assert (named.error_code, named.group_state) == (ErrorCode.NONE, "Empty")
        for refused in (
            await client.call(join, 5, 30_000),
            await client.call(groups.HeartbeatRequest(**nobody), 3, 30_000),
            await client.call(groups.LeaveGroupRequest(group_id=""), 3, 30_000),
            await client.call(groups.SyncGroupRequest(**nobody, assignments=[]), 3, 30_000),
            await client.call(
                group_offsets.OffsetDeleteRequest(group_id="", topics=[gone]), 0, 30_000
            ),
        ):
            assert refused.error_code == ErrorCode.INVALID_GROUP_ID
        delete = groups.DeleteGroupsRequest(groups_names=[""])
        [deleted] = (await client.call(delete, 1, 30_000)).results
        assert deleted.error_code == ErrorCode.NONE
        [found] = (await client.call(fetch, 5, 30_000)).topics[0].partitions
        assert found.committed_offset == -1
        await client.close()

    asyncio.run(work())


def ask_version_0(cluster: Cluster, key: int, body: bytes) -> bytes:
    """Send a request in the oldest version; return the body of its answer."""
    (broker,) = cluster.brokers.values()
    frame = struct.pack(">hhi", key, 0, 1) + text("old") + body
    with broker.connect() as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        answer = connection.makefile("rb")
        (size,) = struct.unpack(">i", answer.read(4))
        return answer.read(size)[4:]


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def test_version_0_keeps_offsets_in_zookeeper(cluster: Cluster, topic: str) -> None:
    where = text("oldies") + struct.pack(">i", 1) + text(topic) + struct.pack(">ii", 1, 2)
    answer = ask_version_0(cluster, 8, where + struct.pack(">q", 42) + text("note"))
    assert answer.endswith(struct.pack(">ih", 2, 0))
    path = consumers.offset_path("oldies", topic, 2)
    with cluster.zookeeper.client() as client:
        assert client.get(path)[0] == b"42"
    assert struct.pack(">iq", 2, 42) in ask_version_0(cluster, 9, where)


@pytest.mark.parametrize("group", ["", ".", "..", "../brokers", "a//b", "a/../b"])
def test_version_0_answers_for_a_group_that_is_no_path(
    cluster: Cluster, topic: str, group: str
) -> None:
    where = text(group) + struct.pack(">i", 1) + text(topic) + struct.pack(">ii", 1, 2)
    answer = ask_version_0(cluster, 8, where + struct.pack(">q", 42) + text("note"))
    assert answer.endswith(struct.pack(">ih", 2, -1))
    assert ask_version_0(cluster, 9, where).endswith(struct.pack(">iqhh", 2, -1, 0, -1))


@pytest.mark.timeout(1800)
def test_offsets_survive_the_death_of_their_coordinator(tmp_path: Path) -> None:
    settings = {
        **STEADY,
        "offsets.topic.replication.factor": "3",
        "offsets.topic.num.partitions": "3",
        "min.insync.replicas": "2",
        # Of three replicas one is killed at a time: a busy machine must not take another out.
        "replica.lag.time.max.ms": "30000",
    }
    with Cluster(tmp_path, brokers=3, settings=settings) as running:
        create_topic(running.bootstrap, "t", partitions=1, replicas=3)
        produce_all(running.bootstrap, "t", RECORDS[:50])
        one = member(running.bootstrap, "durable")
        one.subscribe(["t"])
        for number in range(1, COORDINATOR_KILLS + 1):
            wait_until(lambda: shares(one) == [1], "assigned")
            commit = confluent_kafka.TopicPartition("t", 0, number)
            wait_until(partial(committed_now, one, commit), "committed")
            victim = coordinator_of(running, "durable")
            running.crash(victim)
            again = member(running.bootstrap, "durable")
            assert committed_by(again) == number
            again.close()
            running.brokers[victim].spawn()
        one.close()


def committed_now(one: confluent_kafka.Consumer, commit: confluent_kafka.TopicPartition) -> bool:
    try:
        one.commit(offsets=[commit], asynchronous=False)
    except confluent_kafka.KafkaException:
        one.poll(0.1)
        return False
    return True


def committed_by(one: confluent_kafka.Consumer) -> int:
    """What the group's coordinator knows, once there is one again."""
    found: list[confluent_kafka.TopicPartition] = []

    def told() -> bool:
        found[:] = one.committed([confluent_kafka.TopicPartition("t", 0)], 60)
        return True

    wait_until(told, "the coordinator answers")
    return found[0].offset


def coordinator_of(running: Cluster, group: str) -> int:
    """Who coordinates a group; librdkafka hardly asks again a broker that has just started."""
    found: list[int] = []

    def told() -> bool:
        found[:] = [int(describe(running, group).coordinator.id)]
        return True

    wait_until(told, "the coordinator is known")
    return found[0]
