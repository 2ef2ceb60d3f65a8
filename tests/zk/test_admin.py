"""Topic changes that broker, operator and real tools share, on a real ZooKeeper."""

import asyncio
from dataclasses import replace

import pytest

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.values import BrokerId
from odradek.zk import admin, operations, znodes
from odradek.zk.registration import create_persistent_paths
from odradek.zk.session import Session
from odradek.zk.znodes import BrokerEndpoint, BrokerRegistration, TopicAssignment
from tests.support import steps, zookeeper
from tests.zk.conftest import OpenSession

ASSIGNMENT = TopicAssignment({0: (BrokerId(1), BrokerId(2))})


@pytest.fixture
async def session(sessions: OpenSession) -> Session:
    opened = await sessions()
    await create_persistent_paths(opened)
    return opened


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "empty"),
        (".", "'.' or '..'"),
        ("..", "'.' or '..'"),
        ("a" * 250, "250 characters"),
        ("a b", "other characters"),
        ("a/b", "other characters"),
        ("é", "other characters"),
        ("a\n", "other characters"),
    ],
)
def test_illegal_topic_names_are_refused(name: str, words: str) -> None:
    with pytest.raises(KafkaError, match=words) as caught:
        admin.check_topic_name(name)
    assert caught.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_legal_names_pass_and_collisions_are_named() -> None:
    for name in ("a", "A-b_c.9", "a" * 249, "__consumer_offsets", "..."):
        admin.check_topic_name(name)
    admin.check_collision("a.b", ["a.b", "c"])
    with pytest.raises(KafkaError, match=r"a_b"):
        admin.check_collision("a.b", ["a_b", "c"])


def test_collision_is_found_among_all_topics_by_a_look_at_few() -> None:
    topics = {f"old_{number}.of.many" for number in range(500)}
    alone = steps.count(admin.check_collision, "a.new_one", {"other", "names", "of", "topics"})
    assert steps.count(admin.check_collision, "a.new_one", topics) == alone
    for rival in ("old.7_of_many", "old_7_of_many", "old.7.of.many"):
        with pytest.raises(KafkaError, match=r"existing topics: old_7\.of\.many$"):
            admin.check_collision(rival, set(), topics)
    many = "_".join("x" * 60)
    admin.check_collision(many, topics)
    with pytest.raises(KafkaError, match="collides"):
        admin.check_collision(many, topics | {many.replace("_", ".", 30)})


async def test_topic_comes_with_its_configuration(session: Session) -> None:
    await admin.apply_create_topic(session, "t", ASSIGNMENT, {"retention.ms": "1"})
    made = znodes.decode_topic("/brokers/topics/t", (await session.get("/brokers/topics/t"))[0])
    assert made == replace(ASSIGNMENT, topic_id=made.topic_id)
    assert znodes.is_topic_id(made.topic_id)
    assert (await session.get("/config/topics/t"))[0] == znodes.encode_config({"retention.ms": "1"})
    with pytest.raises(KafkaError) as caught:
        await admin.apply_create_topic(session, "t", ASSIGNMENT, {})
    assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert b"retention" in (await session.get("/config/topics/t"))[0]


async def test_configuration_left_behind_is_replaced(session: Session) -> None:
    await session.create("/config/topics/t", znodes.encode_config({"cleanup.policy": "compact"}))
    await admin.apply_create_topic(session, "t", ASSIGNMENT, {})
    assert (await session.get("/config/topics/t"))[0] == znodes.encode_config({})


async def test_racing_creators_make_one_topic(sessions: OpenSession, session: Session) -> None:
    other = await sessions()
    results = await asyncio.gather(
        *(admin.apply_create_topic(one, "t", ASSIGNMENT, {}) for one in (session, other)),
        return_exceptions=True,
    )
    assert sorted(map(str, results)) == ["None", "TOPIC_ALREADY_EXISTS: Topic 't' already exists."]


async def test_growth_keeps_old_partitions_and_loses_no_race(
    sessions: OpenSession, session: Session
) -> None:
    await admin.apply_create_topic(session, "t", ASSIGNMENT, {})
    other = await sessions()
    results = await asyncio.gather(
        admin.apply_grow_topic(session, "t", {1: (BrokerId(2),)}),
        admin.apply_grow_topic(other, "t", {1: (BrokerId(1),)}),
        return_exceptions=True,
    )
    assert [type(one) for one in results if one is not None] == [KafkaError]
    data, _ = await session.get("/brokers/topics/t")
    grown = znodes.decode_topic("/brokers/topics/t", data)
    assert grown.partitions[0] == (1, 2)
    assert set(grown.partitions) == {0, 1}
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await admin.apply_grow_topic(session, "missing", {1: (BrokerId(1),)})


async def test_topics_and_settings_that_fit_no_znode_are_refused_and_the_largest_can_move(
    session: Session,
) -> None:
    here, there = (tuple(map(BrokerId, range(first, first + 3))) for first in (100, 200))
    largest = dict.fromkeys(range(13_000), here)
    with pytest.raises(KafkaError, match="INVALID_PARTITIONS"):
        admin.check_topic_size(znodes.TopicAssignment({**largest, 13_000: here * 10_000}))
    with pytest.raises(KafkaError, match="INVALID_CONFIG"):
        admin.check_config_size({"a": "x" * admin.LARGEST_CONFIG})
    settings = {"a": "x" * (admin.LARGEST_CONFIG - 1000)}
    admin.check_topic_size(znodes.TopicAssignment(largest))
    admin.check_config_size(settings)
    await admin.apply_create_topic(session, "t", znodes.TopicAssignment(largest), settings)
    with pytest.raises(KafkaError, match="INVALID_PARTITIONS"):
        await admin.apply_grow_topic(session, "t", {13_000 + one: here for one in range(2000)})
    moving = znodes.TopicAssignment(
        dict.fromkeys(largest, there + here),
        dict.fromkeys(largest, there),
        dict.fromkeys(largest, here),
    )
    await session.set(znodes.topic_path("t"), znodes.encode_topic(moving))


async def test_deletion_is_asked_for_once(session: Session) -> None:
    await admin.apply_create_topic(session, "t", ASSIGNMENT, {})
    await admin.apply_request_deletion(session, "t")
    await admin.apply_request_deletion(session, "t")
    assert await session.children("/admin/delete_topics") == ["t"]
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await admin.apply_request_deletion(session, "missing")


async def test_config_change_leaves_a_notice_in_the_same_transaction(
    server: zookeeper.Server, chroot: str, session: Session
) -> None:
    with server.client(chroot) as client:
        operations.commit(client, admin.change_config("topics", "t", {"a": "1"}, None))
        operations.commit(client, admin.change_config("topics", "t", {"a": "2"}, 0))
        with pytest.raises(operations.TransactionFailedError):
            operations.commit(client, admin.change_config("topics", "t", {"a": "3"}, 0))
    names = await session.children("/config/changes")
    assert [znodes.parse_sequence(name, znodes.CONFIG_CHANGE_PREFIX) for name in names] == [0, 1]
    data, _ = await session.get(f"/config/changes/{names[0]}")
    assert data == b'{"version":2,"entity_path":"topics/t"}'


async def test_registration_that_is_unreadable_hides_no_broker(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    registered = BrokerRegistration(BrokerId(2), (BrokerEndpoint("PLAINTEXT", "two", 9092),))
    for name, data in (("1", b'{"version":4'), ("2", znodes.encode_broker(registered)), ("x", b"")):
        await session.create(f"{znodes.BROKER_IDS_PATH}/{name}", data)
    assert await admin.read_brokers(session) == {2: registered}
    for name in ("1", "x"):
        assert (
            f"passing over the registration of a broker: znode /brokers/ids/{name}" in caplog.text
        )
