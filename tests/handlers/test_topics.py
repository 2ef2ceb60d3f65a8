"""Topics on a controller: what is refused, with which code, and what ZooKeeper is asked for."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from types import SimpleNamespace

import pytest
from kazoo.exceptions import ConnectionLoss, KazooException, MarshallingError

from odradek import assignment
from odradek.controller.replica_assignment import MOST_REPLICAS
from odradek.handlers import automatic_topics, replica_lists, topic_batches, topics
from odradek.handlers.context import Broker, RequestContext
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from odradek.replica.metadata import BrokerInfo, PartitionInfo
from odradek.values import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, BrokerId
from odradek.zk import operations, znodes
from odradek.zk.session import Stat
from tests.support.replicas import FakeSession

CONTEXT = RequestContext(5, "c", "PLAINTEXT", "h", 1)
THERE = "there"
# Of this topic the controller knows, and nobody has been told yet.
NEW = "new"
STAT = Stat(version=0, cversion=0, czxid=0, mzxid=0, owner=0, children=0, created_ms=0)


class Zookeeper(FakeSession):
    """Takes changes of topics, counts what it is asked at once, and fails when told."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: Exception | None = None
        self.asked = self.at_once = self.most_at_once = 0

    async def exists(self, path: str) -> Stat | None:
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return STAT if path in self.znodes else None

    async def multi(self, wanted: list[operations.Operation]) -> None:
        await self.exists("")
        if self.failure is not None:
            error = self.failure
            if isinstance(error, KazooException) and not isinstance(error, ConnectionLoss):
                error = operations.TransactionFailedError(wanted[-1], len(wanted) - 1, error)
            raise error
        for one in wanted:
            assert isinstance(one, operations.Create | operations.SetData)
            self.znodes[one.path] = one.data, 0


@pytest.fixture
def zookeeper() -> Zookeeper:
    fake = Zookeeper()
    for topic in (THERE, NEW):
        assignment = znodes.TopicAssignment({0: (BrokerId(1),)})
        fake.znodes[znodes.topic_path(topic)] = znodes.encode_topic(assignment), 0
    return fake


@pytest.fixture
def controller(broker: Broker, zookeeper: Zookeeper) -> Broker:
    """Broker 1 as controller of itself and one topic."""
    broker.metadata.brokers[1] = BrokerInfo(1, {}, None)
    broker.metadata.topics[THERE] = {0: PartitionInfo(1, 0, (1,), (1,), ())}
    known = (THERE, NEW)

    async def wait_until_deleted(topic: str, timeout_ms: float) -> bool:
        return topic not in known

    office = SimpleNamespace(
        active=True,
        knows=known.__contains__,
        wait_until_deleted=wait_until_deleted,
        created=[],
        topic_created=None,
    )
    office.topic_created = office.created.append
    return dataclasses.replace(
        broker,
        session=zookeeper,  # type: ignore[arg-type]
        controller=office,  # type: ignore[arg-type]
    )


def new_topic(name: str, partitions: int = 1) -> CreatableTopic:
    return CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
    )


def placed_topic(name: str, *places: list[int]) -> CreatableTopic:
    """Return a topic whose partitions have these replicas."""
    return CreatableTopic(
        name=name,
        num_partitions=replica_lists.USE_DEFAULT,
        replication_factor=replica_lists.USE_DEFAULT,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in enumerate(places)
        ],
        configs=[],
    )


async def create(
    broker: Broker, wanted: Iterable[CreatableTopic], validate_only: bool = False
) -> list[int]:
    request = CreateTopicsRequest(topics=list(wanted), timeout_ms=0, validate_only=validate_only)
    answer = await topics.create_topics(broker, request, CONTEXT)
    return [one.error_code for one in answer.topics]


async def grow(broker: Broker, *wanted: CreatePartitionsTopic) -> list[int]:
    request = CreatePartitionsRequest(topics=list(wanted), timeout_ms=0, validate_only=False)
    answer = await topics.create_partitions(broker, request, CONTEXT)
    return [one.error_code for one in answer.results]


async def delete(broker: Broker, *names: str) -> list[int]:
    request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=0)
    answer = await topics.delete_topics(broker, request, CONTEXT)
    return [one.error_code for one in answer.responses]


async def test_zookeeper_is_not_asked_for_topics_that_nobody_knows(
    controller: Broker, zookeeper: Zookeeper
) -> None:
    names = [f"unknown-{number}" for number in range(500)]
    assert set(await delete(controller, *names)) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert not zookeeper.asked


async def test_topics_are_deleted_from_the_moment_the_controller_knows_of_them(
    controller: Broker, zookeeper: Zookeeper
) -> None:
    assert await delete(controller, THERE, NEW) == [ErrorCode.REQUEST_TIMED_OUT] * 2
    for topic in (THERE, NEW):
        assert znodes.delete_topic_path(topic) in zookeeper.znodes


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        (TRANSACTIONS_TOPIC, "transactions that are open are never ended"),
        (OFFSETS_TOPIC, "all groups lose their committed offsets"),
    ],
)
async def test_the_log_says_what_the_deletion_of_an_internal_topic_costs(
    controller: Broker,
    zookeeper: Zookeeper,
    caplog: pytest.LogCaptureFixture,
    topic: str,
    said: str,
) -> None:
    controller.metadata.topics[topic] = {0: PartitionInfo(1, 0, (1,), (1,), ())}
    assignment = znodes.TopicAssignment({0: (BrokerId(1),)})
    zookeeper.znodes[znodes.topic_path(topic)] = znodes.encode_topic(assignment), 0
    assert await delete(controller, THERE, topic) == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert znodes.delete_topic_path(topic) in zookeeper.znodes
    [line] = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert line.startswith(f"topic {topic} is deleted: ")
    assert said in line


async def test_a_topic_grows_from_what_another_request_has_just_added(
    controller: Broker, zookeeper: Zookeeper
) -> None:
    """The metadata lacks that yet; Kafka reads ZooKeeper."""

    def to(count: int) -> CreatePartitionsTopic:
        return CreatePartitionsTopic(name=THERE, count=count)

    path = znodes.topic_path(THERE)
    for count in (3, 5):
        assert await grow(controller, to(count)) == [ErrorCode.REQUEST_TIMED_OUT]
        assert len(znodes.decode_topic(path, zookeeper.znodes[path][0]).partitions) == count
    assert await grow(controller, to(5)) == [ErrorCode.INVALID_PARTITIONS]
    assert await grow(controller, to(4)) == [ErrorCode.INVALID_PARTITIONS]


async def test_few_topics_of_a_long_request_are_written_at_once(
    controller: Broker, zookeeper: Zookeeper
) -> None:
    wanted = [new_topic(f"t{number}") for number in range(500)]
    assert set(await create(controller, wanted)) == {ErrorCode.REQUEST_TIMED_OUT}
    assert 1 < zookeeper.most_at_once <= topic_batches.CHANGES_AT_ONCE


async def test_outcomes_come_in_the_order_of_the_request(controller: Broker) -> None:
    codes = await create(controller, [new_topic("one"), new_topic(THERE), new_topic("two")])
    assert codes == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.REQUEST_TIMED_OUT,
    ]
    told: list[str] = controller.controller.created  # type: ignore[attr-defined]
    assert told == ["one", "two"], "the controller need not look for them"


async def test_of_two_names_that_collide_in_one_request_the_second_is_refused(
    controller: Broker, zookeeper: Zookeeper
) -> None:
    wanted = [new_topic("a.b"), new_topic("a_b")]
    assert await create(controller, wanted, validate_only=True) == [ErrorCode.NONE] * 2
    assert await create(controller, wanted) == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert znodes.topic_path("a_b") not in zookeeper.znodes


async def test_replicas_of_a_new_topic_may_be_on_brokers_that_are_down(
    controller: Broker, zookeeper: Zookeeper
) -> None:
    """As in Kafka, which refuses them only where partitions are added to a topic."""
    wanted = placed_topic("t", [1, 9], [9, 1])
    assert await create(controller, [wanted]) == [ErrorCode.REQUEST_TIMED_OUT]
    path = znodes.topic_path("t")
    assert znodes.decode_topic(path, zookeeper.znodes[path][0]).partitions == {0: (1, 9), 1: (9, 1)}
    on_9 = [CreatePartitionsAssignment(broker_ids=[9])]
    more = CreatePartitionsTopic(name=THERE, count=2, assignments=on_9)
    assert await grow(controller, more) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]


@pytest.mark.parametrize(
    "places",
    [
        [[1], [1, 9]],
        [[1, 1]],
        [[]],
        [[1, -1]],
        [[*range(MOST_REPLICAS + 1)]],
    ],
    ids=["different lengths", "one broker twice", "no broker", "no id of a broker", "too many"],
)
async def test_replicas_of_a_new_topic_that_make_no_sense_are_refused(
    controller: Broker, zookeeper: Zookeeper, places: list[list[int]]
) -> None:
    codes = await create(controller, [placed_topic("t", *places)])
    assert codes == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    assert znodes.topic_path("t") not in zookeeper.znodes


async def test_default_number_of_partitions_counts_for_the_limit(controller: Broker) -> None:
    config = dataclasses.replace(controller.config, num_partitions=100)
    many = dataclasses.replace(controller, config=config)
    wanted = [new_topic(f"t{number}", replica_lists.USE_DEFAULT) for number in range(101)]
    assert set(await create(many, wanted)) == {ErrorCode.POLICY_VIOLATION}
    assert set(await create(many, wanted[:100])) == {ErrorCode.REQUEST_TIMED_OUT}


async def test_replicas_are_counted_before_any_is_copied_or_chosen(
    controller: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each list, and each topic, would be taken by itself."""
    for chosen in ("of_new_topic", "of_new_partitions"):
        monkeypatch.setattr(replica_lists, chosen, lambda *_: pytest.fail("chosen"))
    lists = [[*range(MOST_REPLICAS)]] * (topics.MOST_NEW_REPLICAS // 2 // MOST_REPLICAS + 1)
    listed = [placed_topic(name, *lists) for name in ("one", "two")]
    refused = [ErrorCode.POLICY_VIOLATION]
    assert await create(controller, listed, validate_only=True) == refused * 2
    ids = range(1, 21)
    controller.metadata.brokers.update({one: BrokerInfo(one, {}, None) for one in ids})
    many = topics.MOST_NEW_REPLICAS // len(ids) + 2
    wide = new_topic("wide", many)
    wide.replication_factor = len(ids)
    assert await create(controller, [wide], validate_only=True) == refused
    controller.metadata.topics[THERE] = {0: PartitionInfo(1, 0, tuple(ids), (1,), ())}
    more = CreatePartitionsTopic(name=THERE, count=many, assignments=None)
    assert await grow(controller, more) == refused


async def test_replicas_for_which_a_topic_is_refused_anyway_are_not_counted(
    controller: Broker,
) -> None:
    """So that the client is told what is wrong with them."""
    too_long = placed_topic("t", [*range(2 * topics.MOST_NEW_REPLICAS)])
    assert await create(controller, [too_long]) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    too_wide = new_topic("t", 9000)
    too_wide.replication_factor = 1000
    assert await create(controller, [too_wide]) == [ErrorCode.INVALID_REPLICATION_FACTOR]


async def test_partitions_of_a_topic_that_is_made_meanwhile_are_counted_too(
    controller: Broker, zookeeper: Zookeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, multi = controller.metadata.topics, zookeeper.multi

    async def making_another(wanted: list[operations.Operation]) -> None:
        known[NEW] = known[THERE]
        await multi(wanted)

    monkeypatch.setattr(zookeeper, "multi", making_another)
    unknown = [f"unknown-{number}" for number in range(topic_batches.CHANGES_AT_ONCE - 1)]
    counts = {THERE: 2, **dict.fromkeys(unknown, 2), NEW: topics.MOST_NEW_PARTITIONS + 2}
    wanted = [
        CreatePartitionsTopic(name=name, count=count, assignments=None)
        for name, count in counts.items()
    ]
    codes = await grow(controller, *wanted)
    assert (codes[0], codes[-1]) == (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.POLICY_VIOLATION)
    path = znodes.topic_path(NEW)
    assert len(znodes.decode_topic(path, zookeeper.znodes[path][0]).partitions) == 1


async def test_topic_whose_first_partition_never_had_a_leader_is_not_grown(
    controller: Broker,
) -> None:
    controller.metadata.topics[THERE] = {1: PartitionInfo(1, 0, (1,), (1,), ())}
    more = CreatePartitionsTopic(name=THERE, count=3, assignments=None)
    assert await grow(controller, more) == [ErrorCode.LEADER_NOT_AVAILABLE]


async def test_topic_that_fits_no_znode_is_refused(
    controller: Broker, zookeeper: Zookeeper
) -> None:
    far = range(2_000_000_000, 2_000_000_004)
    controller.metadata.brokers.update({one: BrokerInfo(one, {}, None) for one in far})
    wanted = new_topic("t", 9000)
    wanted.replication_factor = len(far)
    assert await create(controller, [wanted]) == [ErrorCode.INVALID_PARTITIONS]
    config = dataclasses.replace(
        controller.config, num_partitions=9000, default_replication_factor=len(far)
    )
    many = dataclasses.replace(controller, config=config)
    assert await automatic_topics.create(many, "t", CONTEXT) is ErrorCode.INVALID_PARTITIONS
    assert znodes.topic_path("t") not in zookeeper.znodes


async def test_a_huge_default_of_partitions_is_refused_before_replicas_are_chosen(
    controller: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(assignment, "assign_replicas", lambda *_, **__: pytest.fail("chosen"))
    for topic, setting in (
        ("t", "num.partitions"),
        (OFFSETS_TOPIC, "offsets.topic.num.partitions"),
        (TRANSACTIONS_TOPIC, "transaction.state.log.num.partitions"),
    ):
        field = setting.replace(".", "_")
        config = dataclasses.replace(controller.config, **{field: 2**31 - 1})  # type: ignore[arg-type]
        many = dataclasses.replace(controller, config=config)
        code = await automatic_topics.create(many, topic, CONTEXT)
        assert code is ErrorCode.INVALID_PARTITIONS
        assert caplog.messages[-1].endswith(f": lower {setting}")


async def test_partitions_added_to_several_topics_count_together(controller: Broker) -> None:
    other = "other"
    controller.metadata.topics[other] = controller.metadata.topics[THERE]
    wanted = [
        CreatePartitionsTopic(name=name, count=6000, assignments=None) for name in (THERE, other)
    ]
    assert await grow(controller, *wanted) == [ErrorCode.POLICY_VIOLATION] * 2


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (ConnectionLoss(), ErrorCode.REQUEST_TIMED_OUT),
        (MarshallingError(), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_refusals_of_zookeeper_are_answered(
    controller: Broker, zookeeper: Zookeeper, failure: Exception, code: ErrorCode
) -> None:
    zookeeper.failure = failure
    more = CreatePartitionsTopic(name=THERE, count=2, assignments=None)
    assert await create(controller, [new_topic("t")]) == [code]
    assert await grow(controller, more) == [code]
    assert await delete(controller, THERE) == [code]


async def test_first_use_of_a_topic_that_zookeeper_refuses_is_answered(
    controller: Broker, zookeeper: Zookeeper
) -> None:
    zookeeper.failure = MarshallingError()
    code = await automatic_topics.create(controller, "t", CONTEXT)
    assert code is ErrorCode.UNKNOWN_SERVER_ERROR
    zookeeper.failure = ConnectionLoss()
    code = await automatic_topics.create(controller, "t", CONTEXT)
    assert code is ErrorCode.LEADER_NOT_AVAILABLE


async def test_topic_of_transactions_is_made_as_kafka_makes_it(
    controller: Broker, zookeeper: Zookeeper
) -> None:
    controller.metadata.brokers.update({one: BrokerInfo(one, {}, None) for one in (2, 3)})
    code = await automatic_topics.create(controller, TRANSACTIONS_TOPIC, CONTEXT)
    assert code is ErrorCode.LEADER_NOT_AVAILABLE
    path = znodes.topic_path(TRANSACTIONS_TOPIC)
    replicas = znodes.decode_topic(path, zookeeper.znodes[path][0]).partitions
    assert [len(replicas[number]) for number in range(50)] == [3] * 50
    path = znodes.topic_config_path(TRANSACTIONS_TOPIC)
    assert znodes.decode_config(path, zookeeper.znodes[path][0]) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "2",
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }


async def test_topic_whose_znode_cannot_be_read_is_not_grown(
    controller: Broker, zookeeper: Zookeeper
) -> None:
    zookeeper.znodes[znodes.topic_path(THERE)] = b"no json", 0
    more = CreatePartitionsTopic(name=THERE, count=2, assignments=None)
    assert await grow(controller, more) == [ErrorCode.UNKNOWN_SERVER_ERROR]
